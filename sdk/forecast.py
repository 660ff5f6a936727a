"""The Python interface: ``kopt.forecast(frame)`` in a notebook or script, without a server.

    import kopt
    print(kopt.forecast("demand.parquet"))              # or a pandas DataFrame with columns series, t, value
    kopt.forecast(frame, horizons_s=(300, 3600), quantiles=(0.5, 0.99)).to_dict()

``kopt demand forecast -o json`` prints ``Forecast.to_dict()``.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.core.prediction import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES, ModelVersion, Prediction
from kopt.core.settings import Settings
from kopt.data.demand.table import GRID_S, DemandDataError, DemandSeries
from kopt.models.registry.aliases import CHAMPION

if TYPE_CHECKING:
    import pandas as pd

    from kopt.models.demand.predictor import DemandPredictor

_LOG = logging.getLogger(__name__)
SCHEMA = "kopt/v1"


@dataclass(frozen=True)
class ServiceForecast:
    """One series' predictions, one per horizon, the nearest first. ``step_s`` is the bucket that values are sums of."""

    name: str
    step_s: int
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class Forecast:
    """Predictions for several series by one model."""

    services: tuple[ServiceForecast, ...]
    model: ModelVersion

    def __iter__(self) -> Iterator[ServiceForecast]:
        return iter(self.services)

    def __len__(self) -> int:
        return len(self.services)

    def to_dict(self) -> dict[str, Any]:
        """One entry per series and horizon under ``forecasts``."""
        entries = [
            {"series": service.name, "step_s": service.step_s, **prediction.to_dict()}
            for service in self.services
            for prediction in service.predictions
        ]
        return {"schema": SCHEMA, "model": self.model.to_dict(), "forecasts": entries}

    def to_frame(self) -> "pd.DataFrame":
        """Columns ``series, horizon_s, q50 …``, a row per series and horizon; refusals are NaN."""
        import pandas as pd

        return pd.DataFrame(
            {"series": service.name, "horizon_s": p.horizon_s, **{quantile_name(q): v for q, v in p.quantiles.items()}}
            for service in self.services
            for p in service.predictions
        )

    def _repr_html_(self) -> str:
        """A table for notebooks; names are escaped."""
        names = sorted({q for service in self.services for p in service.predictions for q in p.quantiles})
        head = "".join(f"<th>{escape(text)}</th>" for text in ("series", "horizon", *map(quantile_name, names), "why"))
        rows = "".join(_html_row(service.name, p, names) for service in self.services for p in service.predictions)
        caption = escape(f"demand forecast by {self.model.name} {self.model.version}")
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def quantile_name(probability: float) -> str:
    """``q50`` for 0.5, ``q99.9`` for 0.999."""
    return f"q{round(probability * 100, 6):g}"


def _html_row(name: str, prediction: Prediction, probabilities: Sequence[float]) -> str:
    cells = [f"{prediction.quantiles[q]:,.4g}" if q in prediction.quantiles else "–" for q in probabilities]
    why = prediction.reasons[0].message if prediction.reasons else ""
    horizon = f"{(prediction.horizon_s or 0) / 60:g} min"
    return "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in (name, horizon, *cells, why)) + "</tr>"


def forecast(
    frame: "pd.DataFrame | DemandSeries | Sequence[DemandSeries] | Path | str",
    *,
    horizons_s: Sequence[int] = DEFAULT_HORIZONS_S,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    model: "str | DemandPredictor" = CHAMPION,
    now_s: float | None = None,
    settings: Settings | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Forecast:
    """Quantiles of demand per series and horizon, counted from the end of each series.

    ``frame`` is a DataFrame with columns ``series, t, value`` (``series`` may be absent for one series; ``t`` in
    seconds or as timestamps), series, or a path. ``model`` is an alias, a version, ``shipped`` or a loaded predictor;
    without a champion in a registry of this machine the shipped model answers. ``now_s`` (Unix time) makes stale data a
    refusal. ``progress`` is called with the series done and their number.

    Raises DemandDataError for data that cannot be used, RegistryError for a model that is not there.
    """
    series = _series_of(frame)
    predictor = demand_model(model, settings) if isinstance(model, str) else model
    services = []
    for done, demand_series in enumerate(series, 1):
        at_s = now_s if demand_series.start_known else None
        answers = predictor.forecast(demand_series, tuple(horizons_s), tuple(quantiles), now_s=at_s)
        services.append(ServiceForecast(demand_series.name, max(demand_series.step_s, GRID_S), answers))
        if progress:
            progress(done, len(series))
    return Forecast(tuple(services), predictor.version)


def demand_model(model: str = CHAMPION, settings: Settings | None = None) -> "DemandPredictor":
    """The demand predictor that ``model`` names, verified; raises as ``models.registry.loading.load_predictor``."""
    from kopt.models.demand.predictor import DemandPredictor
    from kopt.models.registry.loading import load_as

    return load_as(DemandPredictor, "demand", model, settings)


def has_registry(settings: Settings | None) -> bool:
    """Is there a registry to ask? Looking does not make one."""
    if settings is None:
        return False
    return bool(settings.mlflow_uri) or (settings.home / "mlflow.db").exists()


def _series_of(frame: Any) -> list[DemandSeries]:
    if isinstance(frame, DemandSeries):
        return [frame]
    if isinstance(frame, str | Path):
        from kopt.data.demand.load import load

        return load(frame)
    if hasattr(frame, "columns"):
        from kopt.data.demand.files import from_frame

        return from_frame(frame)
    series = list(frame)
    if not series or not all(isinstance(item, DemandSeries) for item in series):
        raise DemandDataError("give a DataFrame with columns series, t, value, or DemandSeries, or a path")
    return series
