"""The model registry: versions with the aliases ``champion`` and ``challenger``, on MLflow.

Versions are plain artefacts of our own layout (``models.artefact``) under a signature (``models.signing``); MLflow's
model flavours are never used. A fetched folder lies in ``home/models/<digest>`` and is verified each time it is
handed out.
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
from kopt.models.artefact import ArtefactError, read_card
from kopt.models.base import Predictor
from kopt.models.catalogue import predictor_class
from kopt.models.fetching import ARTIFACT_PATH, fetch, verified
from kopt.models.locks import exclusive
from kopt.models.shipped import shipped_digests, verified_shipped
from kopt.models.signing import SigningError, sign_folder, signing_key
from kopt.models.tracking import NotRegisteredError, RegistryError, connect, explained

__all__ = ["CHALLENGER", "CHAMPION", "MetricRow", "NotRegisteredError", "RegisteredModel", "Registry", "RegistryError"]

CHAMPION = "champion"
CHALLENGER = "challenger"
PASSED = "passed"
REFUSED = "refused"
SHIPPED = "shipped"
"""Where a version came from (tag ``origin``): the package, not a training."""
_HISTORY = "champion_history"
_HISTORY_LENGTH = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class RegisteredModel:
    """One version of a model as the registry knows it. ``created_s`` is Unix time.

    ``gate`` is ``passed``, ``refused`` or empty (never judged); ``gate_against`` is the champion it was judged
    against (empty: there was none) and ``gate_summary`` the verdict in words.
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
        known_digests: Collection[str] | None = None,
    ) -> None:
        self.settings = settings
        self._predictors = predictors
        self._known = frozenset(shipped_digests().values() if known_digests is None else known_digests)

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
            found = client.get_model_version(name, version)
            return _registered(found, _aliases_of(client, name).get(version, ()))

    def list(self, name: str) -> tuple[RegisteredModel, ...]:
        """Every version, newest first; empty for a model that was never registered."""
        client = self.client
        try:
            with explained(f"model {name!r}"):
                aliases = _aliases_of(client, name)
                found = client.search_model_versions(f"name = '{name}'", max_results=10_000)
        except NotRegisteredError:
            return ()
        models = (_registered(item, aliases.get(str(item.version), ())) for item in found)
        return tuple(sorted(models, key=lambda model: -int(model.version)))

    def metrics(self, model: RegisteredModel) -> Mapping[str, float]:
        """The metrics of the run that made the version."""
        client = self.client
        with explained(f"run {model.run_id} of {model.name} version {model.version}"):
            return {key: float(value) for key, value in client.get_run(model.run_id).data.metrics.items()}

    def compare(self, name: str, versions: Sequence[str] = (CHAMPION, CHALLENGER)) -> tuple[MetricRow, ...]:
        """Metrics of several versions (numbers or aliases) side by side, sorted by name."""
        tables = [self.metrics(self.get(name, version)) for version in versions]
        names = sorted(set().union(*tables))
        return tuple(MetricRow(metric, tuple(table.get(metric) for table in tables)) for metric in names)

    def experiment(self, name: str) -> str:
        """The id of the MLflow experiment of a predictor's runs, made on first use."""
        client = self.client
        with explained(f"experiment {name!r}"), exclusive(self.settings.home / "mlflow.lock"):
            found = client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            embedded = self.settings.tracking_uri.startswith("sqlite:")
            location = (self.settings.artifacts / name).absolute().as_uri() if embedded else None
            return str(client.create_experiment(name, artifact_location=location))

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
                client.create_registered_model(name)
            source = f"{client.get_run(owner).info.artifact_uri}/{ARTIFACT_PATH}"
            made = client.create_model_version(name, source=source, run_id=owner, tags=dict(tags))
            if run_id is None:
                client.set_terminated(owner)
        return self.get(name, str(made.version))

    def _checked(self, folder: Path) -> tuple[str, str]:
        try:
            digest, card = verified(folder, self.settings.keys, self._known)
        except (SigningError, ArtefactError) as error:
            raise RegistryError(f"not registered: {error}") from error
        return digest, card.predictor

    def fetch(self, name: str, version: str) -> Path:
        """The folder of a version (number or alias), verified now; downloaded where it is not cached.

        Refuses a deleted or torn artefact, files of unsafe formats, and whatever no trusted key has signed.
        """
        model = self.get(name, version)
        place = f"{name} version {model.version}"
        if not _DIGEST.fullmatch(model.digest):
            raise RegistryError(f"{place} has no digest tag; it was not registered by kopt")
        try:
            cache = self.settings.home / "models"
            folder = fetch(self.client, model.run_id, model.digest, cache, self.settings.keys, self._known)
        except RegistryError as error:
            raise RegistryError(f"{place}: {error}") from error
        holder = read_card(folder).predictor
        if holder != name:
            raise RegistryError(f"{place} holds a model of {holder!r}")
        return folder

    def load(self, name: str, version: str = CHAMPION) -> Predictor:
        """The fitted predictor of a version (number or alias), verified, with its ``version`` set."""
        model = self.get(name, version)
        folder = self.fetch(name, model.version)
        try:
            predictor = predictor_class(name, self._predictors).load(folder)
        except ValueError as error:
            raise RegistryError(f"{name} version {model.version} cannot be loaded: {error}") from error
        predictor.version = model.model_version
        return predictor

    def judge(self, name: str, version: str, *, passed: bool, against: str, summary: str) -> None:
        """Store the gate's verdict on a version; ``against`` is the champion's version, empty when there was none."""
        verdict = PASSED if passed else REFUSED
        self._tag(name, version, {"gate": verdict, "gate_against": against, "gate_summary": summary[:5000]})

    def challenge(self, name: str, version: str) -> None:
        """Point the alias ``challenger`` at a version."""
        client = self.client
        with explained(f"{name} version {version}"):
            client.set_registered_model_alias(name, CHALLENGER, version)

    def promote(
        self, name: str, version: str = CHALLENGER, *, force: bool = False, reason: str = ""
    ) -> RegisteredModel:
        """Make a version (number or alias) the champion.

        Refused unless the gate passed it against the champion of today, or ``force`` is set, which is recorded with
        ``reason`` on the version. The folder is fetched and verified first, so a broken version never serves.
        """
        with self._locked():
            model, champion = self.get(name, version), self._champion(name)
            if champion is not None and champion.version == model.version:
                return model
            if not force:
                _require_verdict(model, champion)
            self.fetch(name, model.version)
            note = {"forced": reason or "no reason given"} if force else {}
            self._tag(name, model.version, {"promoted_s": f"{time.time():.0f}", **note})
            self._point(name, [*self._history(name, champion), model.version])
            if CHALLENGER in model.aliases:
                with explained(f"alias {CHALLENGER!r} of {name}"):
                    self.client.delete_registered_model_alias(name, CHALLENGER)
        return self.get(name, model.version)

    def rollback(self, name: str) -> RegisteredModel:
        """Make the champion before the present one champion again; the present one is marked as rolled back."""
        with self._locked():
            champion = self._champion(name)
            if champion is None:
                raise NotRegisteredError(f"{name} has no champion to roll back from")
            earlier = [version for version in self._history(name, champion) if version != champion.version]
            if not earlier:
                raise RegistryError(f"{name} version {champion.version} is the only champion there has been")
            self.fetch(name, earlier[-1])
            self._tag(name, champion.version, {"rolled_back_s": f"{time.time():.0f}"})
            self._point(name, earlier)
        return self.get(name, earlier[-1])

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
        return (
            champion if "rolled_back_s" in model.tags else self.promote(name, model.version, force=True, reason=SHIPPED)
        )

    def _adopt(self, name: str) -> RegisteredModel:
        """Register the shipped model under this home's own signature: the next package may not know its digest."""
        with tempfile.TemporaryDirectory(prefix="kopt-shipped-") as scratch:
            folder = Path(scratch) / "model"
            try:
                shutil.copytree(verified_shipped(name), folder)
                sign_folder(folder, signing_key(self.settings.keys))
            except (ArtefactError, SigningError) as error:
                raise RegistryError(f"default model of {name}: {error}") from error
            model = self.register(folder, tags={"origin": SHIPPED})
        if not model.gate:
            self.judge(name, model.version, passed=True, against="", summary="default model of the package")
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
        # Somebody may have set the alias in MLflow's own pages.
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
        with ExitStack() as held:
            try:
                held.enter_context(exclusive(self.settings.home / "registry.lock"))
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
    found: dict[str, set[str]] = {}
    for alias, version in client.get_registered_model(name).aliases.items():
        found.setdefault(str(version), set()).add(str(alias))
    return found


def _versions(text: str) -> tuple[str, ...]:
    try:
        stored = json.loads(text)
    except json.JSONDecodeError:
        return ()
    return tuple(v for v in stored if isinstance(v, str) and _VERSION.fullmatch(v)) if isinstance(stored, list) else ()


def _require_verdict(model: RegisteredModel, champion: RegisteredModel | None) -> None:
    place = f"{model.name} version {model.version}"
    against = "" if champion is None else champion.version
    if not model.gate:
        raise RegistryError(f"{place} has not been through the gate; train it with kopt train, or promote with --force")
    if model.gate != PASSED:
        raise RegistryError(f"{place} was refused by the gate: {model.gate_summary}; --force promotes it all the same")
    if model.gate_against != against:
        raise RegistryError(
            f"{place} was judged against version {model.gate_against or 'none'}, but the champion is now "
            f"{against or 'none'}; train again to judge it anew, or promote with --force"
        )
