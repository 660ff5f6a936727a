"""A training's run in MLflow: parameters, figures by slice, plots, the data's digest, the model's files.

The run is opened when training starts and continued, not doubled, when a killed training is resumed.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kopt.core.redaction import redact, redact_document
from kopt.models.registry.mlflow import explained
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.protocols import Dataset, GateDecision

_BATCH = 500


class Logbook:
    """One MLflow run. Methods raise RegistryError when MLflow does not answer."""

    def __init__(self, registry: Registry, run_id: str) -> None:
        self._registry, self.run_id = registry, run_id

    @classmethod
    def open(cls, registry: Registry, predictor: str, digest: str, known_run: str | None) -> "Logbook":
        """The run of a training digest: the one it had before, else a new one."""
        client = registry.client
        experiment = registry.experiment(predictor)
        with explained("opening a run"):
            if known_run and _exists(client, known_run):
                client.update_run(known_run, status="RUNNING")
                return cls(registry, known_run)
            made = client.create_run(experiment, run_name=f"train-{digest[:8]}", tags={"training": digest})
            return cls(registry, str(made.info.run_id))

    def describe(self, dataset: Dataset, parameters: Mapping[str, Any]) -> None:
        """Parameters and data set; logging the same again changes nothing."""
        from mlflow.entities import Param, RunTag

        logged = {**parameters, "series": len(dataset.names), "dataset": dataset.name}
        tags = {
            "dataset_digest": dataset.digest,
            "left_out": json.dumps(redact_document(dict(dataset.left_out)))[:4000],
        }
        with explained("logging parameters"):
            self._registry.client.log_batch(
                self.run_id,
                params=[Param(key, redact(str(value))) for key, value in sorted(redact_document(logged).items())],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )

    def figures(self, metrics: Mapping[str, float]) -> None:
        """Metrics by name."""
        import time

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

    def close(self, status: str) -> None:
        """``FINISHED``, ``FAILED`` or ``KILLED``."""
        with explained("closing the run"):
            self._registry.client.set_terminated(self.run_id, status)


def _exists(client: Any, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_run(run_id).info.lifecycle_stage) == "active"
    except MlflowException:
        return False
