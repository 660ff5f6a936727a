"""The answers of ``/v1/models`` and of ``/v1/health``, declared once for the endpoint and its clients.

Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kopt.core.prediction import ModelVersion
from kopt.serving.contract.common import SCHEMA, ModelOut, ReasonOut
from kopt.serving.contract.reading import read_answer

# Docstrings of these classes are published in docs/openapi.json, and their names are.


@dataclass(frozen=True)
class SeriesHealthOut:
    """Predicted against actual of one series over the newest window."""

    name: str
    matched: int
    coverage: float | None
    """Share of actuals at or under the predicted ``quantile``; null before the first match."""
    quantile: float
    error: float | None
    """Mean absolute error of the median over the mean actual (WAPE)."""
    error_last_value: float | None
    drift: float | None
    """Population stability index of the newest demand against the trailing window."""
    alarm: bool
    reasons: tuple[ReasonOut, ...]


@dataclass(frozen=True)
class RegisteredModelOut:
    name: str
    alias: str
    version: str
    digest: str
    serving: bool
    """Whether this replica answers with it."""
    canary_percent: int = 0
    """Of the questions that a challenger on trial answers here, beside the champion."""

    @property
    def model_version(self) -> ModelVersion:
        return ModelVersion(self.name, self.version, self.digest)


@dataclass(frozen=True)
class ComparisonOut:
    """One answer beside what was measured, in the ``unit`` of its entry."""

    subject: str
    """The job type, or the pair of nodes."""
    namespace: str
    """Whose workload it is; empty where the question named none."""
    at_s: float
    value: float
    low: float
    high: float
    measured: float


@dataclass(frozen=True)
class IntervalHealthOut:
    """How the intervals of one version of a predictor have held against its newest measurements."""

    predictor: str
    role: str
    """``champion``, or ``challenger`` on the same measurements."""
    version: str
    unit: str
    compared: int
    probability: float
    """With which the intervals promise to hold the measurement."""
    coverage: float | None
    error: float | None
    """Median of measured over predicted, or its inverse where that is larger, less 1."""
    bias: float | None
    """Median of measured over predicted, less 1; above 0 the predictions are too small."""
    alarm: bool
    widened_for: int
    """Callers and namespaces whose intervals are widened, as theirs miss too often."""
    reasons: tuple[ReasonOut, ...]
    newest: tuple[ComparisonOut, ...]


@dataclass(frozen=True, kw_only=True)
class PredictorsHealthResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    predictors: tuple[IntervalHealthOut, ...]


@dataclass(frozen=True, kw_only=True)
class ModelsResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    models: tuple[RegisteredModelOut, ...]
    refused: tuple[ReasonOut, ...]
    """Why a newer model is not serving (bad signature, torn files)."""


@dataclass(frozen=True, kw_only=True)
class ModelHealthResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    model: ModelOut
    challenger: ModelOut | None
    series: tuple[SeriesHealthOut, ...]
    shadow: tuple[SeriesHealthOut, ...]
    """The challenger on the same requests."""


def parse_models(document: Mapping[str, Any]) -> ModelsResponse:
    """The versions that ``/v1/models`` lists. Raises AnswerError for anything else."""
    return read_answer(ModelsResponse, "/v1/models", document)


def parse_health(document: Mapping[str, Any]) -> ModelHealthResponse:
    """What ``/v1/health/models`` says. Raises AnswerError for anything else."""
    return read_answer(ModelHealthResponse, "/v1/health/models", document)


def parse_predictors_health(document: Mapping[str, Any]) -> PredictorsHealthResponse:
    """What ``/v1/health/predictors`` says. Raises AnswerError for anything else."""
    return read_answer(PredictorsHealthResponse, "/v1/health/predictors", document)
