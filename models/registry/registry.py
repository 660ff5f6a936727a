"""The model registry: versions with the aliases ``champion`` and ``challenger``, on MLflow.

Versions are plain artefacts of our own layout (``models.registry.artifact``) under a signature
(``models.registry.signing``); MLflow's model flavours are never used. A fetched folder lies in
``home/models/<digest>`` and is verified each time it is handed out. Anyone who can reach the registry may write tags
and aliases: the gate's decision and every promotion are signed as well (``models.registry.promotion_seals``), and
``champion`` is loaded under a valid seal only.
"""

import json
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.core.signing_keys import SigningError, signing_key
from kopt.models.base import Predictor
from kopt.models.predictors import predictor_class
from kopt.models.registry.aliases import CHALLENGER, CHAMPION
from kopt.models.registry.artifact import ArtefactError, read_card
from kopt.models.registry.champion_pointer import ChampionPointers
from kopt.models.registry.download import ARTIFACT_PATH, fetch, verified
from kopt.models.registry.locks import exclusive
from kopt.models.registry.mlflow import NotRegisteredError, RegistryError, connect, explained
from kopt.models.registry.promotion import Promotions, UnsealedError
from kopt.models.registry.promotion_seals import CANARY_TAG, FORCED, GATE, MOST_PERCENT, ROLLBACK
from kopt.models.registry.promotion_seals import SHIPPED as PACKAGE
from kopt.models.registry.shipped import shipped_digests, shipped_figures, verified_shipped
from kopt.models.registry.signing import sign_folder
from kopt.models.registry.trial import try_once
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
OPPONENT = "champion/"
"""Before the name of a metric of the champion that a version was compared with, on that version's rows."""
EXPERIMENT_KIND = "mlflow.experimentKind"
"""MLflow's tag for how an experiment's page opens: with runs and their metrics, not with traces."""
_HISTORY = "champion_history"
_HISTORY_LENGTH = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class RegisteredModel:
    """One version of a model as the registry knows it. ``created_s`` is Unix time.

    ``gate`` is ``passed``, ``refused`` or empty (never judged); ``gate_against`` is the champion it was judged
    against (empty: there was none) and ``gate_summary`` its summary.
    """

    name: str
    version: str
    digest: str
    run_id: str
    created_s: float
    aliases: tuple[str, ...] = ()
    gate: str = ""
    gate_against: str = ""
    gate_summary: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def model_version(self) -> ModelVersion:
        return ModelVersion(self.name, self.version, self.digest)


@dataclass(frozen=True)
class MetricRow:
    """One metric of several versions side by side, in the order asked for; None where a version lacks it."""

    metric: str
    values: tuple[float | None, ...]


class Registry:
    """Registered models of one MLflow server or SQLite file.

    Example::

        registry = Registry(settings)
        champion = registry.resolve("demand", "champion")
        predictor = registry.load("demand", champion.version)

    Every method raises RegistryError with a way out; NotRegisteredError where a model, version or alias is absent.
    ``predictors`` maps predictor names to their classes; folders with ``known_digests`` (default: the shipped
    models) need no signature.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        predictors: Mapping[str, str] | None = None,
        trusted_digests: Collection[str] | None = None,
    ) -> None:
        self.settings = settings
        self._predictors = predictors
        self._trusted_digests = frozenset(shipped_digests().values() if trusted_digests is None else trusted_digests)
        self._promotions = Promotions(settings)
        self._pointers = ChampionPointers(settings)

    @cached_property
    def client(self) -> Any:
        """The MLflow client, connected on first use."""
        return connect(self.settings)

    def resolve(self, name: str, alias: str = CHAMPION) -> RegisteredModel:
        """The version that ``alias`` points to (3 ms on SQLite: cheap enough to poll)."""
        client = self.client
        with explained(f"model {name!r}, alias {alias!r}"):
            return _registered(client.get_model_version_by_alias(name, alias), {alias})

    def get(self, name: str, version: str) -> RegisteredModel:
        """A version by its number, or by an alias."""
        client = self.client
        if not _VERSION.fullmatch(version):
            version = self.resolve(name, version).version
        with explained(f"model {name!r}, version {version}"):
            result = client.get_model_version(name, version)
            return _registered(result, _aliases_of(client, name).get(version, ()))

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        """Every version, newest first; empty for a model that was never registered."""
        client = self.client
        try:
            with explained(f"model {name!r}"):
                aliases = _aliases_of(client, name)
                result = client.search_model_versions(f"name = '{name}'", max_results=10_000)
        except NotRegisteredError:
            return ()
        models = (_registered(item, aliases.get(str(item.version), ())) for item in result)
        return tuple(sorted(models, key=lambda model: -int(model.version)))

    def metrics(self, model: RegisteredModel) -> Mapping[str, float]:
        """The metrics of the run that made the version; of a default model those that came with its package."""
        client = self.client
        with explained(f"run {model.run_id} of {model.name} version {model.version}"):
            logged = {key: float(value) for key, value in client.get_run(model.run_id).data.metrics.items()}
        return logged or shipped_figures(model.digest)

    def compare(self, name: str, versions: Sequence[str] = (CHAMPION, CHALLENGER)) -> tuple[MetricRow, ...]:
        """Metrics of several versions (numbers or aliases) side by side, sorted by name.

        What the gate measured of a version beside another of them, on the same rows, goes before its own.
        """
        models = [self.get(name, version) for version in versions]
        measured = [self.metrics(model) for model in models]
        tables: list[dict[str, float]] = []
        for model, metrics in zip(models, measured, strict=True):
            table = {key: value for key, value in metrics.items() if not key.startswith(OPPONENT)}
            for challenger, others in zip(models, measured, strict=True):
                if challenger.gate_against == model.version:
                    table |= {k.removeprefix(OPPONENT): v for k, v in others.items() if k.startswith(OPPONENT)}
            tables.append(table)
        names = sorted(set().union(*tables))
        return tuple(MetricRow(metric, tuple(table.get(metric) for table in tables)) for metric in names)

    def experiment(self, name: str) -> str:
        """The id of the MLflow experiment of a predictor's runs, made on first use."""
        client = self.client
        with explained(f"experiment {name!r}"), exclusive(self.settings.home / "mlflow.lock"):
            result = client.get_experiment_by_name(name)
            if result is not None:
                return str(result.experiment_id)
            embedded = self.settings.tracking_uri.startswith("sqlite:")
            location = (self.settings.artifacts / name).absolute().as_uri() if embedded else None
            tags = {EXPERIMENT_KIND: "custom_model_development"}
            return str(client.create_experiment(name, artifact_location=location, tags=tags))

    def register(
        self,
        folder: Path,
        *,
        run_id: str | None = None,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> RegisteredModel:
        """Store a signed (or shipped) model folder as a new version of the predictor its card names.

        Without ``run_id`` a run is made for it, and a folder that is registered already gives the version it has.
        A run that was passed in stays open for its owner.
        """
        digest, name = self._checked(folder)
        with self._locked():
            present = [model for model in self.list(name) if model.digest == digest]
            if present and run_id is None:
                return present[0]
            return self._store(folder, name, run_id, metrics or {}, {**(tags or {}), "digest": digest})

    def _store(
        self, folder: Path, name: str, run_id: str | None, metrics: Mapping[str, float], tags: Mapping[str, str]
    ) -> RegisteredModel:
        client, experiment = self.client, self.experiment(name)
        with explained(f"registering {name}"):
            owner = run_id or client.create_run(experiment, run_name=f"register {name}").info.run_id
            for key, value in sorted(metrics.items()):
                client.log_metric(owner, key, float(value))
            client.log_artifacts(owner, str(folder), ARTIFACT_PATH)
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name, description=self._about(name))
            source = f"{client.get_run(owner).info.artifact_uri}/{ARTIFACT_PATH}"
            made = client.create_model_version(name, source=source, run_id=owner, tags=dict(tags))
            if run_id is None:
                client.set_terminated(owner)
        return self.get(name, str(made.version))

    def _about(self, name: str) -> str:
        """What MLflow's page of the model says."""
        purpose = (predictor_class(name, self._predictors).__doc__ or "").partition("\n\n")[0]
        return (
            f"{' '.join(purpose.split())}\n\n"
            f'```python\nimport kopt\nmodel = kopt.load_model("models:/{name}@{CHAMPION}")\n```\n\n'
            f"`kopt models list {name}` lists versions, `kopt train {name}` trains the next one. An alias that is set "
            "here changes nothing that is served: `kopt models promote` and `rollback` sign what they do."
        )

    def _checked(self, folder: Path) -> tuple[str, str]:
        try:
            digest, card = verified(folder, self.settings.keys, self._trusted_digests)
        except (SigningError, ArtefactError) as error:
            raise RegistryError(f"not registered: {error}") from error
        return digest, card.predictor

    def fetch(self, name: str, version: str) -> Path:
        """The folder of a version (number or alias), verified now; downloaded where it is not cached.

        Refuses a deleted or torn artefact, files of unsafe formats, and whatever no trusted key has signed.
        """
        model = self.get(name, version)
        where = f"{name} version {model.version}"
        if not _DIGEST.fullmatch(model.digest):
            raise RegistryError(f"{where} has no digest tag; it was not registered by kopt")
        try:
            cache = self.settings.home / "models"
            folder = fetch(self.client, model.run_id, model.digest, cache, self.settings.keys, self._trusted_digests)
        except RegistryError as error:
            raise RegistryError(f"{where}: {error}") from error
        holder = read_card(folder).predictor
        if holder != name:
            raise RegistryError(f"{where} holds a model of {holder!r}")
        return folder

    def load(self, name: str, version: str = CHAMPION, *, promoted: bool | None = None) -> Predictor:
        """The fitted predictor of a version (number or alias), verified, with its ``version`` set.

        ``promoted`` (by default for the alias ``champion``) wants a promotion seal that is valid and no older than
        those seen here: raises UnsealedError without one.
        """
        model = self.get(name, version)
        folder = self.fetch(name, model.version)
        if version == CHAMPION if promoted is None else promoted:
            self._promotions.admit(name, model.version, model.digest, model.tags, self._trusted_digests)
            self._noted(model)
        return self._loaded(model.model_version, folder)

    def load_pointed(self, name: str) -> Predictor | None:
        """The champion without asking MLflow, where the home itself proves which one it is; None where it does not."""
        pointed = self._pointers.champion(name)
        folder = self.settings.home / "models" / pointed.digest if pointed is not None else None
        if pointed is None or folder is None or not folder.is_dir():
            return None
        try:
            if self._checked(folder) != (pointed.digest, name):
                return None
        except RegistryError:
            # The registry may have it whole.
            return None
        return self._loaded(ModelVersion(name, pointed.version, pointed.digest), folder)

    def load_last_promoted(self, name: str) -> Predictor:
        """The predictor of the newest promotion that this home has seen, from the folder it was fetched into.

        It answers while the registry's champion is refused. Raises RegistryError if there is none.
        """
        digest = self._promotions.last(name)
        folder = self.settings.home / "models" / digest
        if not digest or not folder.is_dir():
            raise NotRegisteredError(f"no promoted version of {name} has been fetched here")
        result, holder = self._checked(folder)
        if (result, holder) != (digest, name):
            raise RegistryError(f"{folder} holds another model ({holder}, {result[:12]})")
        return self._loaded(ModelVersion(name, self._version_of(name, digest), digest), folder)

    def _version_of(self, name: str, digest: str) -> str:
        try:
            return next((model.version for model in self.list(name) if model.digest == digest), digest[:12])
        except RegistryError:
            return digest[:12]

    def _loaded(self, version: ModelVersion, folder: Path) -> Predictor:
        where = f"{version.name} version {version.version}"
        try:
            kind = predictor_class(version.name, self._predictors)
            # A child finds the package's own predictors only; what an embedder brings is in this process alone.
            if kind.__module__.startswith("kopt.") and version.digest not in self._trusted_digests:
                try_once(version.name, folder, version.digest, self.settings.home)
            predictor = kind.load(folder)
        except ValueError as error:
            raise RegistryError(f"{where} cannot be loaded: {error}") from error
        predictor.version = version
        return predictor

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

    def _noted(self, champion: RegisteredModel) -> RegisteredModel:
        self._pointers.point(champion.name, champion.version, champion.digest, champion.tags)
        return champion

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

    def history(self, name: str) -> tuple[str, ...]:
        """Versions that have been champion, oldest first, ending with the present one."""
        return tuple(self._history(name, self._champion(name)))

    def _champion(self, name: str) -> RegisteredModel | None:
        try:
            return self.get(name, CHAMPION)
        except NotRegisteredError:
            return None

    def _history(self, name: str, champion: RegisteredModel | None) -> Sequence[str]:
        with explained(f"model {name!r}"):
            stored = _versions(self.client.get_registered_model(name).tags.get(_HISTORY, "[]"))
        # The alias may have been set in MLflow's own pages.
        changed = champion is not None and stored[-1:] != (champion.version,)
        return (*stored, champion.version) if champion is not None and changed else stored

    def _point(self, name: str, history: Sequence[str]) -> None:
        """Point the champion alias at the last of ``history``. The alias goes first: a kill between leaves it true."""
        client, version = self.client, history[-1]
        with explained(f"alias {CHAMPION!r} of {name}"):
            client.set_registered_model_alias(name, CHAMPION, version)
            client.set_registered_model_tag(name, _HISTORY, json.dumps(history[-_HISTORY_LENGTH:]))
            now = str(client.get_model_version_by_alias(name, CHAMPION).version)
        if now != version:
            raise RegistryError(f"{name}: version {now} was promoted at the same moment; look at it and promote again")

    def _tag(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        client = self.client
        with explained(f"{name} version {version}"):
            for key, value in tags.items():
                client.set_model_version_tag(name, version, key, value)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self.settings.home / "registry.lock"))
            except TimeoutError as error:
                raise RegistryError(f"another process has held the registry for a minute: {error}") from error
            yield


def _registered(item: Any, aliases: Collection[str]) -> RegisteredModel:
    tags = {str(key): str(value) for key, value in item.tags.items()}
    return RegisteredModel(
        name=str(item.name),
        version=str(item.version),
        digest=tags.get("digest", ""),
        run_id=str(item.run_id or ""),
        created_s=item.creation_timestamp / 1000,
        aliases=tuple(sorted(aliases)),
        gate=tags.get("gate", ""),
        gate_against=tags.get("gate_against", ""),
        gate_summary=tags.get("gate_summary", ""),
        tags=tags,
    )


def _aliases_of(client: Any, name: str) -> dict[str, set[str]]:
    """Version → its aliases."""
    result: dict[str, set[str]] = {}
    for alias, version in client.get_registered_model(name).aliases.items():
        result.setdefault(str(version), set()).add(str(alias))
    return result


def _versions(text: str) -> tuple[str, ...]:
    try:
        stored = json.loads(text)
    except json.JSONDecodeError:
        return ()
    return tuple(v for v in stored if isinstance(v, str) and _VERSION.fullmatch(v)) if isinstance(stored, list) else ()
