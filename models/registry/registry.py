"""The model registry: versions with the aliases ``champion`` and ``challenger``, on MLflow.

Versions are plain artefacts of our own layout (``models.registry.artifact``) under a signature
(``models.registry.signing``); MLflow's model flavours are never used. A fetched folder lies in
``home/models/<digest>`` and is verified each time it is handed out. Anyone who can reach the registry may write tags
and aliases: the gate's decision and every promotion are signed as well (``models.registry.promotion_seals``), and
``champion`` is loaded under a valid seal only.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kopt.core.signing_keys import SigningError, signing_key
from kopt.models.registry.aliases import CHALLENGER, CHAMPION
from kopt.models.registry.artifact import ArtefactError
from kopt.models.registry.mlflow import NotRegisteredError, RegistryError, explained
from kopt.models.registry.model_store import ModelStore
from kopt.models.registry.promotion import UnsealedError
from kopt.models.registry.promotion_seals import CANARY_TAG, FORCED, GATE, MOST_PERCENT, ROLLBACK
from kopt.models.registry.promotion_seals import SHIPPED as PACKAGE
from kopt.models.registry.shipped import shipped_digests, shipped_figures, verified_shipped
from kopt.models.registry.signing import sign_folder
from kopt.models.registry.versions import HISTORY_TAG, MetricRow, RegisteredModel
from kopt.tracing.private_folders import private_folder

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "MetricRow",
    "NotRegisteredError",
    "RegisteredModel",
    "Registry",
    "RegistryError",
    "UnsealedError",
]

PASSED = "passed"
REFUSED = "refused"
SHIPPED = "shipped"
"""Where a version came from (tag ``origin``): the package, not a training."""
_HISTORY_LENGTH = 100


class Registry(ModelStore):
    """Registered models of one MLflow server or SQLite file, and which of them serves.

    Example::

        registry = Registry(settings)
        champion = registry.resolve("demand", "champion")
        predictor = registry.load("demand", champion.version)

    Every method raises RegistryError with a way out; NotRegisteredError where a model, version or alias is absent.
    """

    def record_decision(self, name: str, version: str, *, passed: bool, against: str, summary: str) -> None:
        """Store the gate's signed decision on a version; ``against`` is the champion's version, empty when there was
        none."""
        decision, digest = PASSED if passed else REFUSED, self.get(name, version).digest
        proof = self._promotions.decision_tags(name, digest, decision, against)
        self._tag(name, version, {"gate": decision, "gate_against": against, "gate_summary": summary[:5000], **proof})

    def describe(self, name: str, version: str, text: str) -> None:
        """Set what MLflow's page of the version says, in Markdown."""
        client = self.client
        with explained(f"{name} version {version}"):
            client.update_model_version(name, version, description=text)

    def challenge(self, name: str, version: str) -> None:
        """Point the alias ``challenger`` at a version."""
        client = self.client
        with explained(f"{name} version {version}"):
            client.set_registered_model_alias(name, CHALLENGER, version)

    def promote(
        self, name: str, version: str = CHALLENGER, *, force: bool = False, reason: str = ""
    ) -> RegisteredModel:
        """Make a version (number or alias) the champion, under a new seal.

        Refused unless the gate passed it against the champion of today, or ``force`` is set, which is signed and
        recorded with ``reason`` on the version. The folder is fetched and verified first, so a broken version never
        serves.
        """
        return self._promote(name, version, FORCED if force else GATE, reason)

    def _promote(self, name: str, version: str, ground: str, reason: str) -> RegisteredModel:
        with self._locked():
            model, champion = self.get(name, version), self._champion(name)
            again = champion is not None and champion.version == model.version
            if again and self._promotions.sealed(name, model.digest, model.tags):
                return model
            if ground == GATE:
                self._require_decision(model, champion)
            self.fetch(name, model.version)
            forced_tag = {} if ground == GATE else {"forced": reason or "no reason given"}
            self._tag(name, model.version, {"promoted_s": f"{time.time():.0f}", **forced_tag})
            history = self._history(name, champion)
            self._seal(model, ground, reason)
            self._point(name, history if again else [*history, model.version])
            if CHALLENGER in model.aliases:
                with explained(f"alias {CHALLENGER!r} of {name}"):
                    self.client.delete_registered_model_alias(name, CHALLENGER)
        return self._noted(self.get(name, model.version))

    def set_canary(self, name: str, percent: int, *, force: bool = False) -> RegisteredModel:
        """Let the challenger answer ``percent`` of the questions beside today's champion; 0 ends it.

        Refused for a challenger that the gate did not pass, unless ``force`` is set.
        """
        if not 0 <= percent <= MOST_PERCENT:
            raise RegistryError(f"{percent} is no percentage from 0 to {MOST_PERCENT}; beyond, promote the challenger")
        with self._locked():
            challenger, champion = self.get(name, CHALLENGER), self.get(name, CHAMPION)
            if percent and not force:
                self._require_decision(challenger, champion)
            self.fetch(name, challenger.version)
            tags = self._promotions.canary_tags(name, challenger.digest, champion.digest, percent)
            self._tag(name, challenger.version, tags)
        return self.get(name, challenger.version)

    def canary_percent(self, model: RegisteredModel) -> int:
        """The share of questions that a challenger may answer, as signed, beside the champion of now; mostly 0."""
        if CANARY_TAG not in model.tags:
            return 0
        champion = self._champion(model.name)
        against = "" if champion is None else champion.digest
        return self._promotions.canary_percent(model.name, model.digest, against, model.tags)

    def rollback(self, name: str) -> RegisteredModel:
        """Make the champion before the present one champion again, under a new seal; the present one is marked.

        The registry's list of earlier champions proves nothing: one that was never promoted under a seal is refused.
        """
        with self._locked():
            champion = self._champion(name)
            if champion is None:
                raise NotRegisteredError(f"{name} has no champion to roll back from")
            earlier = [version for version in self._history(name, champion) if version != champion.version]
            if not earlier:
                raise RegistryError(f"{name} version {champion.version} is the only champion there has been")
            model = self.get(name, earlier[-1])
            if not self._promotions.was_promoted(name, model.digest, model.tags):
                raise RegistryError(
                    f"{name} version {model.version} was never promoted under a seal that can be trusted here; look at "
                    f"it, and if it shall answer: kopt models promote {model.version} -p {name} --force --reason '…'"
                )
            self.fetch(name, model.version)
            self._tag(name, champion.version, {"rolled_back_s": f"{time.time():.0f}"})
            self._seal(model, ROLLBACK, f"instead of version {champion.version}")
            self._point(name, earlier)
        return self._noted(self.get(name, earlier[-1]))

    def _seal(self, model: RegisteredModel, ground: str, reason: str) -> None:
        """Sign the promotion. The seal goes before the alias: a kill between leaves a champion that is still sealed."""
        all_tags = [registered_model.tags for registered_model in self.list(model.name)]
        seal, tag = self._promotions.seal(model.name, model.digest, ground, reason, all_tags)
        self._tag(model.name, model.version, tag)
        self._promotions.accept(seal)

    def _require_decision(self, model: RegisteredModel, champion: RegisteredModel | None) -> None:
        """Raises RegistryError unless the gate's signed decision on the version allows its promotion today."""
        where = f"{model.name} version {model.version}"
        against = "" if champion is None else champion.version
        decision = self._promotions.decision(model.name, model.digest, model.tags)
        if decision is None:
            problem = "its verdict in the registry is not signed" if model.gate else "has not been through the gate"
            raise RegistryError(f"{where}: {problem}; train it with kopt train, or promote with --force")
        if decision.gate != PASSED:
            raise RegistryError(
                f"{where} was refused by the gate: {model.gate_summary}; --force promotes it all the same"
            )
        if decision.against != against:
            raise RegistryError(
                f"{where} was judged against version {decision.against or 'none'}, but the champion is now "
                f"{against or 'none'}; train again to judge it anew, or promote with --force"
            )

    def ensure_champion(self, name: str) -> RegisteredModel | None:
        """The champion; where there is none yet, the shipped default model becomes it; None where none is shipped.

        A default model of an earlier package gives way to the one of this package, unless that was rolled back.
        """
        champion, digest = self._champion(name), shipped_digests().get(name)
        if digest is None or (champion is not None and champion.tags.get("origin") != SHIPPED):
            return champion
        if champion is not None and champion.digest == digest:
            return champion
        model = self._adopt(name)
        return champion if "rolled_back_s" in model.tags else self._promote(name, model.version, PACKAGE, SHIPPED)

    def _adopt(self, name: str) -> RegisteredModel:
        """Register the shipped model under this home's own signature: the next package may not know its digest."""
        with private_folder("kopt-shipped-", Path(tempfile.gettempdir())) as (scratch, _):
            folder = scratch / "model"
            try:
                shutil.copytree(verified_shipped(name), folder)
                sign_folder(folder, signing_key(self.settings.keys))
            except (ArtefactError, SigningError) as error:
                raise RegistryError(f"default model of {name}: {error}") from error
            figures = shipped_figures(shipped_digests()[name])
            model = self.register(folder, metrics=figures, tags={"origin": SHIPPED})
        if not model.gate:
            self.record_decision(name, model.version, passed=True, against="", summary="default model of the package")
        return self.get(name, model.version)

    def _point(self, name: str, history: Sequence[str]) -> None:
        """Point the champion alias at the last of ``history``. The alias goes first: a kill between leaves it true."""
        client, version = self.client, history[-1]
        with explained(f"alias {CHAMPION!r} of {name}"):
            client.set_registered_model_alias(name, CHAMPION, version)
            client.set_registered_model_tag(name, HISTORY_TAG, json.dumps(history[-_HISTORY_LENGTH:]))
            now = str(client.get_model_version_by_alias(name, CHAMPION).version)
        if now != version:
            raise RegistryError(f"{name}: version {now} was promoted at the same moment; look at it and promote again")
