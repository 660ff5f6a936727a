"""The lendable-GPU curve of forecasts made here, by the very code behind the pages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.dashboard.pages.lending.view import PoolView
    from kopt.data.demand.table import DemandSeries
    from kopt.sdk.forecast import Forecast


def lendable_pools(
    series: "Sequence[DemandSeries]", forecast: "Forecast", settings: Settings, risk: float, *, shared: bool
) -> "tuple[PoolView, ...]":
    """Pools with their curves; capacities from ``services.toml`` in the home, or by the convention.

    Raises CapacityError for a services.toml that cannot be read.
    """
    from kopt.dashboard.data.capacity import FILE, assumed_capacity, read_capacities
    from kopt.dashboard.data.sources import Service
    from kopt.dashboard.pages.lending.view import pools
    from kopt.data.demand.table import GRID_S
    from kopt.serving.contract.demand_answers import HorizonForecast, SeriesForecast

    capacities = read_capacities(settings.home / FILE)
    services = []
    for demand_series, service_forecast in zip(series, forecast, strict=True):
        grid = demand_series.resampled(GRID_S)
        horizons = tuple(HorizonForecast(int(p.horizon_s or 0), p) for p in service_forecast.predictions)
        answer = SeriesForecast(service_forecast.name, grid.unit, service_forecast.step_s, horizons)
        capacity = capacities.get(demand_series.name) or assumed_capacity(grid)
        services.append(Service(grid, answer, capacity, grid.start_s + len(grid) * grid.step_s))
    return pools(services, risk, shared=shared)
