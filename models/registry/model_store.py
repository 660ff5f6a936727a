"""Folders of models as versions: stored under a signature, fetched and verified again before anything is loaded."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.core.signing_keys import SigningError
from kopt.models.base import Predictor
from kopt.models.predictors import predictor_class
from kopt.models.registry.aliases import CHAMPION
from kopt.models.registry.artifact import ArtefactError, read_card
from kopt.models.registry.champion_pointer import ChampionPointers
from kopt.models.registry.download import ARTIFACT_PATH, fetch, verified
from kopt.models.registry.mlflow import NotRegisteredError, RegistryError, explained
from kopt.models.registry.promotion import Promotions
from kopt.models.registry.shipped import shipped_digests
from kopt.models.registry.trial import try_once
from kopt.models.registry.versions import RegisteredModel, Versions

_DIGEST = re.compile(r"[0-9a-f]{64}")


class ModelStore(Versions):
    """Versions with the folders that they are.

    ``predictors`` maps predictor names to their classes; folders with ``trusted_digests`` (default: the shipped
    models) need no signature.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        predictors: Mapping[str, str] | None = None,
        trusted_digests: Collection[str] | None = None,
    ) -> None:
        super().__init__(settings)
        self._predictors = predictors
        self._trusted_digests = frozenset(shipped_digests().values() if trusted_digests is None else trusted_digests)
        self._promotions = Promotions(settings)
        self._pointers = ChampionPointers(settings)

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

    def _noted(self, champion: RegisteredModel) -> RegisteredModel:
        self._pointers.point(champion.name, champion.version, champion.digest, champion.tags)
        return champion
