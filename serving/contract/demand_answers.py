"""What callers of ``/v1/demand`` ask and get, as frozen values. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.serving.contract.common import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES, SCHEMA, ModelOut, ReasonOut
from kopt.serving.contract.reading import read_answer

Amount = float | None


@dataclass(frozen=True)
class History:
    """Demand of one service up to now; empty ``t`` and ``value`` ask for the feature store's newest row.

    ``t`` is the start of each bucket in seconds; ``value`` the amount in it, None or NaN for a gap.
    """

    name: str
    t: Sequence[float] = ()
    value: Sequence[Amount] = ()
    in_tok: Sequence[Amount] = ()
    out_tok: Sequence[Amount] = ()
    tenants: Mapping[str, Sequence[Amount]] = field(default_factory=dict)
    pool: str | None = None
    gpus: int | None = None
    min_gpus: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this series; gaps are null, absent columns are left out."""
        columns = {"value": self.value, "in_tok": self.in_tok, "out_tok": self.out_tok}
        document: dict[str, Any] = {"name": self.name, "min_gpus": self.min_gpus}
        if len(self.t):
            document["t"] = [float(time_s) for time_s in self.t]
        document |= {name: _nulls(column) for name, column in columns.items() if len(column)}
        if self.tenants:
            document["tenants"] = {name: _nulls(column) for name, column in self.tenants.items()}
        return document | {k: v for k, v in (("pool", self.pool), ("gpus", self.gpus)) if v is not None}


def _nulls(column: Sequence[Amount]) -> list[float | None]:
    return [None if amount is None or amount != amount else float(amount) for amount in column]


@dataclass(frozen=True)
class DemandQuery:
    """A request to ``/v1/demand``. ``capacity_per_gpu``: value / capacity_per_gpu = GPUs, in each bucket."""

    series: Sequence[History]
    unit: str = "requests"
    capacity_per_gpu: float | None = None
    horizons_s: Sequence[int] = DEFAULT_HORIZONS_S
    quantiles: Sequence[float] = DEFAULT_QUANTILES
    now_s: float | None = None
    replay: bool = False

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "series": [history.to_dict() for history in self.series],
            "unit": self.unit,
            "horizons_s": list(self.horizons_s),
            "quantiles": list(self.quantiles),
        }
        optional = {"capacity_per_gpu": self.capacity_per_gpu, "now_s": self.now_s, "replay": self.replay or None}
        return document | {name: number for name, number in optional.items() if number is not None}


@dataclass(frozen=True)
class HorizonForecast:
    """Demand, and whole GPUs where the query gave a capacity, ``horizon_s`` seconds ahead."""

    horizon_s: int
    demand: Prediction
    gpus: Prediction | None = None

    def to_dict(self) -> dict[str, Any]:
        gpus = None if self.gpus is None else self.gpus.to_dict()
        return {"horizon_s": self.horizon_s, "demand": self.demand.to_dict(), "gpus": gpus}


@dataclass(frozen=True)
class AnomalyOut:
    """Demand that is not what the service's past lets expect, as of its newest bucket."""

    direction: Literal["lower", "higher"]
    since_s: float
    """Start of the bucket with which it began."""
    value: float
    expected: float
    """Demand in the newest bucket, and what was expected of it, in the series' unit."""
    severity: float
    """The largest evidence since it began over what an anomaly takes, at least 1."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class SeriesForecast:
    """All horizons of one service; demand is the sum over a bucket of ``bucket_s`` seconds. ``anomaly`` is that of a
    live service."""

    name: str
    unit: str
    bucket_s: int
    horizons: tuple[HorizonForecast, ...]
    anomaly: AnomalyOut | None = None

    @property
    def fallback(self) -> bool:
        return any(horizon.demand.fallback for horizon in self.horizons)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "bucket_s": self.bucket_s,
            "fallback": self.fallback,
            "horizons": [horizon.to_dict() for horizon in self.horizons],
            "anomaly": None if self.anomaly is None else self.anomaly.to_dict(),
        }


@dataclass(frozen=True)
class DemandForecast:
    """The answer to a DemandQuery, series in the query's order; ``seconds`` is the time the endpoint took."""

    series: tuple[SeriesForecast, ...]
    model: ModelVersion
    seconds: float = 0.0

    @property
    def fallback(self) -> bool:
        """Whether any series was answered without the model."""
        return any(series.fallback for series in self.series)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model.to_dict(),
            "fallback": self.fallback,
            "series": [series.to_dict() for series in self.series],
            "seconds": self.seconds,
        }


# Docstrings of the classes below are published in docs/openapi.json, and their names are. The endpoint writes them
# with ``DemandForecast.to_dict``: this answer is asked for most, and a dictionary is written faster.


@dataclass(frozen=True)
class PredictionOut:
    """``core.prediction.Prediction`` on the wire; ``refused`` means no value, and the first reason says why."""

    value: float | None
    low: float | None
    high: float | None
    probability: float
    unit: str
    confidence: float
    model: ModelOut
    reasons: tuple[ReasonOut, ...]
    quantiles: Mapping[str, float]
    features_at_s: float | None
    horizon_s: float | None
    fallback: bool
    refused: bool

    def __post_init__(self) -> None:
        # Refuses what cannot be a prediction.
        _ = self.prediction

    @cached_property
    def prediction(self) -> Prediction:
        return Prediction(
            self.value,
            self.low,
            self.high,
            self.probability,
            self.unit,
            self.confidence,
            self.model.model_version,
            tuple(Reason(reason.code, reason.message, reason.numbers) for reason in self.reasons),
            {float(probability): amount for probability, amount in self.quantiles.items()},
            self.features_at_s,
            self.horizon_s,
            self.fallback,
        )


@dataclass(frozen=True)
class HorizonOut:
    horizon_s: int
    demand: PredictionOut
    gpus: PredictionOut | None
    """Whole GPUs for the demand; its reasons name the reactive rule where that asks for more."""

    @property
    def forecast(self) -> HorizonForecast:
        gpus = None if self.gpus is None else self.gpus.prediction
        return HorizonForecast(self.horizon_s, self.demand.prediction, gpus)


@dataclass(frozen=True)
class SeriesOut:
    name: str
    unit: str
    bucket_s: int
    """Demand is the sum over a bucket of this many seconds; finer histories are summed to 300 s first."""
    fallback: bool
    horizons: tuple[HorizonOut, ...]
    anomaly: AnomalyOut | None = None
    """Of a service that is asked about by name; null as well while the endpoint has not observed it since its start."""

    @property
    def forecast(self) -> SeriesForecast:
        horizons = tuple(horizon.forecast for horizon in self.horizons)
        return SeriesForecast(self.name, self.unit, self.bucket_s, horizons, self.anomaly)


@dataclass(frozen=True, kw_only=True)
class DemandResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    model: ModelOut
    fallback: bool
    """Whether any series was answered without the model."""
    series: tuple[SeriesOut, ...]
    seconds: float

    @property
    def forecast(self) -> DemandForecast:
        return DemandForecast(tuple(series.forecast for series in self.series), self.model.model_version, self.seconds)


def parse_forecast(document: Mapping[str, Any]) -> DemandForecast:
    """A DemandForecast from the endpoint's JSON. Raises AnswerError for anything else."""
    return read_answer(DemandResponse, "/v1/demand", document).forecast
