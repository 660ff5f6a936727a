"""Versions of models and aliases, as MLflow has them: which there are, what was measured, which is champion."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kopt.core.prediction import ModelVersion
from kopt.core.settings import Settings
from kopt.models.registry.aliases import CHALLENGER, CHAMPION
from kopt.models.registry.locks import exclusive
from kopt.models.registry.mlflow import NotRegisteredError, RegistryError, connect, explained
from kopt.models.registry.shipped import shipped_figures

OPPONENT = "champion/"
"""Before the name of a metric of the champion that a version was compared with, on that version's rows."""
EXPERIMENT_KIND = "mlflow.experimentKind"
"""MLflow's tag for how an experiment's page opens: with runs and their metrics, not with traces."""
HISTORY_TAG = "champion_history"
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


class Versions:
    """The versions that one MLflow server or SQLite file has. Every method raises RegistryError with a way out."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

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
            stored = _versions(self.client.get_registered_model(name).tags.get(HISTORY_TAG, "[]"))
        # The alias may have been set in MLflow's own pages.
        changed = champion is not None and stored[-1:] != (champion.version,)
        return (*stored, champion.version) if champion is not None and changed else stored

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
