"""The checkpoint predictor: from a job's log, whether it can be killed now and how much work that would lose."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import save_file

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobStatus
from kopt.models.base import Predictor
from kopt.models.checkpoint.classifier.lines import LABELS, LineClassifier, Parameters
from kopt.models.checkpoint.classifier.settings import FitSettings
from kopt.models.checkpoint.classifier.table import LogTable
from kopt.models.checkpoint.classifier.tokens import template
from kopt.models.checkpoint.session import Session
from kopt.models.registry.model_files import read_json, read_tensors

UNREGISTERED = ModelVersion("checkpoint", "unregistered")
UNIT = "gpu_seconds"
PROBABILITY = 0.9
_DOCUMENT, _LAYERS = "checkpoint.json", "lines.safetensors"
_NAMES = ("first", "alone", "second", "within")
_VERSION = 1


@dataclass(frozen=True)
class LogQuestion:
    """A log so far: its lines, when each arrived (None: what the lines say), GPUs of the job, and the time now."""

    lines: tuple[str, ...]
    arrivals_s: tuple[float, ...] | None = None
    gpus: int = 1
    now_s: float | None = None


class CheckpointPredictor(Predictor):
    """Lines → labels (learned), labels → states (``state_machine``), states → work at risk.

    ``classifier`` is there once fitted or loaded; ``session`` follows a log line by line.
    """

    name: ClassVar[str] = "checkpoint"

    def __init__(self, settings: FitSettings | None = None) -> None:
        self.settings = settings or FitSettings()
        self.version = UNREGISTERED
        self._classifier: LineClassifier | None = None

    @property
    def classifier(self) -> LineClassifier:
        if self._classifier is None:
            raise ValueError("the checkpoint predictor has not been fitted; call fit or load first")
        return self._classifier

    def session(self, gpus: int = 1) -> Session:
        """A log to be followed from its first line."""
        return Session(self.classifier, gpus)

    def fit(self, table: LogTable) -> Self:
        """Raises ValueError on a table without a labelled line."""
        from kopt.models.checkpoint.classifier.network import fit

        self._classifier = LineClassifier(fit(table.sequences(), self.settings))
        return self

    def status(self, request: LogQuestion) -> JobStatus:
        """What the log says at its end."""
        session = self.session(request.gpus)
        for _ in session.read(request.lines, request.arrivals_s):
            pass
        return session.status(request.now_s)

    def predict(self, request: LogQuestion) -> tuple[Prediction, ...]:
        """Work at risk in GPU-seconds at the end of the log; refused where nothing tells the time."""
        status = self.status(request)
        risk = status.work_at_risk_gpu_seconds
        if risk is None:
            text = "No line tells the time, so nobody can say how long ago the last checkpoint was; post arrival times."
            return (Prediction.refusal(Reason("NO_TIMES", text), unit=UNIT, model=self.version),)
        prediction = Prediction(
            risk.value, risk.low, risk.high, PROBABILITY, UNIT, status.confidence, self.version, (_reason(status),)
        )
        return (prediction,)

    def explain(self, request: LogQuestion) -> tuple[Reason, ...]:
        """The state with its evidence, and what else that line could have meant."""
        status = self.status(request)
        _, shares = self.classifier.alone([template(status.evidence_text)])
        likely = sorted(zip(LABELS, shares[0].tolist(), strict=True), key=lambda item: -item[1])[:3]
        text = ", ".join(f"{label.value} {share:.0%}" for label, share in likely)
        numbers = {label.value: share for label, share in likely}
        return (_reason(status), Reason("LINE_SAYS", f"On its own the line says {text}.", numbers))

    def save(self, folder: Path) -> None:
        parameters = self.classifier.parameters
        arrays: dict[str, Any] = {"table": parameters.table.astype(np.float16)}
        arrays["known"] = parameters.known.view(np.int32)
        for name, weight, bias in zip(_NAMES, parameters.weights, parameters.biases, strict=True):
            arrays |= {f"{name}.weight": np.ascontiguousarray(weight), f"{name}.bias": bias}
        save_file(arrays, folder / _LAYERS)
        document = {"version": _VERSION, "labels": [label.value for label in LABELS], "settings": asdict(self.settings)}
        (folder / _DOCUMENT).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / _DOCUMENT
        try:
            document = read_json(path)
            loaded = cls(FitSettings(**document["settings"]))
            if document["version"] != _VERSION or document["labels"] != [label.value for label in LABELS]:
                raise ValueError("the model was fitted on other labels; train it again")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: not a saved checkpoint predictor ({error})") from error
        path = folder / _LAYERS
        try:
            loaded._classifier = LineClassifier(_parameters(read_tensors(path)))
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}: no layers of a line classifier ({error})") from error
        return loaded


def _parameters(arrays: Mapping[str, Any]) -> Parameters:
    layers = [(arrays[f"{name}.weight"], arrays[f"{name}.bias"]) for name in _NAMES]
    known = arrays.get("known", np.zeros(0, np.int32)).view(np.uint32)
    table, weights, biases = (
        arrays["table"].astype(np.float32),
        tuple(w for w, _ in layers),
        tuple(b for _, b in layers),
    )
    return Parameters(table, weights, biases, known)


def _reason(status: JobStatus) -> Reason:
    numbers: dict[str, float | int | str] = {"state": status.state.value, "safe": str(status.safe).lower()}
    if status.evidence_line is not None:
        numbers["evidence_line"] = status.evidence_line
    code = "SAFE" if status.safe else "NOT_SAFE"
    return Reason(code, status.reason or "Nothing has been said yet.", numbers)
