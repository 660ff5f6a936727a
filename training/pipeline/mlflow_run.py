"""A training's run in MLflow: parameters, figures by slice, plots, the data with its digest, the model's files.

The run is opened when training starts and continued, not doubled, when a killed training is resumed. Trials of the
search and folds are runs below it.
"""

import csv
import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from kopt import __version__
from kopt.core.redaction import redact, redact_document
from kopt.models.registry.mlflow import explained
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.protocols import Comparison, Dataset, GateDecision

_BATCH = 500
_MOST_DIGEST, _MOST_GROUPS = 36, 200
"""MLflow's longest digest of a data set, and the groups that its profile names."""


class Logbook:
    """One MLflow run. Methods raise RegistryError when MLflow does not answer."""

    def __init__(self, registry: Registry, run_id: str) -> None:
        self._registry, self.run_id = registry, run_id

    @classmethod
    def open(cls, registry: Registry, predictor: str, digest: str, previous_run: str | None) -> "Logbook":
        """The run of a training digest: the one it had before, else a new one."""
        client = registry.client
        experiment = registry.experiment(predictor)
        with explained("opening a run"):
            if previous_run and _exists(client, previous_run):
                client.update_run(previous_run, status="RUNNING")
                return cls(registry, previous_run)
            tags = {"training": digest, **_origin(predictor)}
            made = client.create_run(experiment, run_name=f"train-{digest[:8]}", tags=tags)
            return cls(registry, str(made.info.run_id))

    def describe(self, dataset: Dataset, parameters: Mapping[str, Any]) -> None:
        """Parameters and data set; logging the same again changes nothing."""
        from mlflow.entities import DatasetInput, InputTag, Param, RunTag
        from mlflow.utils.mlflow_tags import MLFLOW_DATASET_CONTEXT

        logged = {**parameters, "series": len(dataset.names), "dataset": dataset.name}
        tags = {
            "dataset_digest": dataset.digest,
            "left_out": json.dumps(redact_document(dict(dataset.excluded)))[:4000],
        }
        with explained("logging parameters"):
            self._registry.client.log_batch(
                self.run_id,
                params=[Param(key, redact(str(value))) for key, value in sorted(redact_document(logged).items())],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
            context = InputTag(MLFLOW_DATASET_CONTEXT, "training")
            self._registry.client.log_inputs(self.run_id, [DatasetInput(_dataset(dataset), [context])])

    def below(self, name: str, parameters: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """A finished run below this one, such as a trial or a fold; one that is there stays as it is."""
        if name in self._below:
            return
        from mlflow.entities import Metric, Param
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

        client, now_ms = self._registry.client, int(time.time() * 1000)
        with explained(f"logging {name}"):
            run_id = str(
                client.create_run(self._experiment, run_name=name, tags={MLFLOW_PARENT_RUN_ID: self.run_id}).info.run_id
            )
            client.log_batch(
                run_id,
                metrics=[Metric(key, value, now_ms, 0) for key, value in sorted(metrics.items())][:_BATCH],
                params=[Param(key, str(value)) for key, value in sorted(parameters.items())],
            )
            client.set_terminated(run_id)
        self._below.add(name)

    def figures(self, metrics: Mapping[str, float]) -> None:
        """Metrics by name."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        entries = [Metric(name, value, now_ms, 0) for name, value in sorted(metrics.items())]
        with explained("logging metrics"):
            for start in range(0, len(entries), _BATCH):
                self._registry.client.log_batch(self.run_id, metrics=entries[start : start + _BATCH])

    def attach(self, files: Iterable[Path], folder: str) -> None:
        """Store files (plots, scores) beside the model."""
        with explained("logging artefacts"):
            for path in files:
                self._registry.client.log_artifact(self.run_id, str(path), folder)

    def log_decision(self, decision: GateDecision) -> None:
        with explained("logging the gate's decision"):
            client = self._registry.client
            client.set_tag(self.run_id, "gate", "passed" if decision.passed else "refused")
            client.set_tag(self.run_id, "gate_summary", decision.summary[:4000])
            client.log_text(self.run_id, _reasons(decision), "gate/reasons.md")
            if decision.comparisons:
                client.log_text(self.run_id, _comparisons(decision.comparisons), "gate/comparisons.csv")

    def close(self, status: str) -> None:
        """``FINISHED``, ``FAILED`` or ``KILLED``."""
        with explained("closing the run"):
            self._registry.client.set_terminated(self.run_id, status)

    @cached_property
    def _experiment(self) -> str:
        return str(self._registry.client.get_run(self.run_id).info.experiment_id)

    @cached_property
    def _below(self) -> set[str]:
        """The names of the runs below this one."""
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

        query = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.run_id}'"
        with explained("reading the runs of trials and folds"):
            result = self._registry.client.search_runs([self._experiment], query, max_results=2000)
        return {str(run.info.run_name) for run in result if run.info.status == "FINISHED"}


def _origin(predictor: str) -> dict[str, str]:
    """Who trained, and with what: MLflow's own tags."""
    from mlflow.tracking.context.registry import resolve_tags
    from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME

    # A path of this machine would say less to others than the command.
    tags: dict[str, str] = resolve_tags({MLFLOW_SOURCE_NAME: f"kopt train {predictor}", "kopt": __version__})
    return tags


def _dataset(dataset: Dataset) -> Any:
    """The data as MLflow's entity. Its digest is cut; the run's tag ``dataset_digest`` has it whole."""
    from mlflow.entities import Dataset as Entity

    groups: dict[str, int] = {}
    for name in dataset.names:
        groups[dataset.group(name)] = groups.get(dataset.group(name), 0) + dataset.size(name)
    profile = {
        "names": len(dataset.names),
        "rows": sum(groups.values()),
        "left_out": len(dataset.excluded),
        "rows_by_group": dict(sorted(groups.items())[:_MOST_GROUPS]),
    }
    return Entity(
        name=redact(dataset.name),
        digest=dataset.digest[:_MOST_DIGEST],
        source_type="local",
        source=json.dumps({"uri": redact(dataset.name)}),
        profile=json.dumps(redact_document(profile)),
    )


def _reasons(decision: GateDecision) -> str:
    """The decision in Markdown, every reason a line."""
    head = "The gate passed it." if decision.passed else "The gate refused it."
    return "\n".join([head, "", *(f"- `{reason.code}` {reason.message}" for reason in decision.reasons), ""])


def _comparisons(comparisons: Iterable[Comparison]) -> str:
    """What was compared with the champion, slice by slice, as CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Comparison)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(comparison) for comparison in comparisons)
    return text.getvalue()


def _exists(client: Any, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_run(run_id).info.lifecycle_stage) == "active"
    except MlflowException:
        return False
