"""What callers of the endpoint ask and get, as frozen values. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.serving.contract.common import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES, SCHEMA, AnswerError

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
class SeriesForecast:
    """All horizons of one service; demand is the sum over a bucket of ``bucket_s`` seconds."""

    name: str
    unit: str
    bucket_s: int
    horizons: tuple[HorizonForecast, ...]

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


def parse_forecast(document: Mapping[str, Any]) -> DemandForecast:
    """A DemandForecast from the endpoint's JSON. Raises AnswerError for anything else."""
    with _Reading("/v1/demand"):
        _check_schema(document)
        series = tuple(
            SeriesForecast(item["name"], item["unit"], item["bucket_s"], tuple(map(_horizon, item["horizons"])))
            for item in document["series"]
        )
        return DemandForecast(series, _model(document["model"]), document["seconds"])


class _Reading:
    """Turns what goes wrong while taking a document apart into an AnswerError that names the path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)) and not isinstance(error, AnswerError):
            raise AnswerError(f"{self._path} answered something unexpected: {error!r}") from error


def _check_schema(document: Mapping[str, Any]) -> None:
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")


def _horizon(document: Mapping[str, Any]) -> HorizonForecast:
    gpus = document["gpus"]
    return HorizonForecast(
        document["horizon_s"], _prediction(document["demand"]), None if gpus is None else _prediction(gpus)
    )


def _prediction(document: Mapping[str, Any]) -> Prediction:
    return Prediction(
        value=document["value"],
        low=document["low"],
        high=document["high"],
        probability=document["probability"],
        unit=document["unit"],
        confidence=document["confidence"],
        model=_model(document["model"]),
        reasons=_reasons(document),
        quantiles={float(q): v for q, v in document["quantiles"].items()},
        features_at_s=document["features_at_s"],
        horizon_s=document["horizon_s"],
        fallback=document["fallback"],
    )


def _model(document: Mapping[str, Any]) -> ModelVersion:
    return ModelVersion(document["name"], document["version"], document["digest"])


def _reasons(document: Mapping[str, Any], key: str = "reasons") -> tuple[Reason, ...]:
    return tuple(Reason(item["code"], item["message"], item["numbers"]) for item in document[key])
