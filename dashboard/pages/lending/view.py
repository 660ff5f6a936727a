"""Lendable GPUs per pool from the newest forecasts, by the very policy that the endpoint and the simulator use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kopt.core.reason import Reason
from kopt.dashboard.data.sources import Service
from kopt.dashboard.formatting import horizon
from kopt.policies.lending.policy import (
    CurvePoint,
    LendingSettings,
    LendingState,
    Pool,
    ServiceDemand,
    decide,
    lendable_curve,
)
from kopt.serving.contract.common import DEFAULT_HORIZONS_S

RISKS = (0.001, 0.01, 0.05)
"""Shares of the time under-provisioned that a reader may choose from."""
DEFAULT_RISK = 0.01
ONE_POOL = "all services"
_RECENT_S = 1800


@dataclass(frozen=True)
class PoolView:
    """One pool as the page shows it; ``missing`` names services with no known capacity, which are left out."""

    name: str
    services: tuple[Service, ...]
    gpus: int
    curve: tuple[CurvePoint, ...]
    reasons: tuple[Reason, ...]
    missing: tuple[str, ...] = ()

    @property
    def lendable(self) -> tuple[int, ...]:
        """Whole GPUs to lend, by horizon."""
        return tuple(int(point.lendable // 1000) for point in self.curve)

    @property
    def curve_text(self) -> str:
        """The curve in words, for those who do not see it."""
        return ", ".join(
            f"{gpus} for {horizon(point.horizon_s)}" for gpus, point in zip(self.lendable, self.curve, strict=True)
        )

    @property
    def assumed(self) -> bool:
        return any(service.capacity.assumed for service in self.services)


def settings_for(risk: float) -> LendingSettings:
    """The policy's settings for an accepted share of time under-provisioned."""
    return replace(LendingSettings(), quantile=1 - risk)


def pools(services: Sequence[Service], risk: float = DEFAULT_RISK, *, shared: bool = False) -> tuple[PoolView, ...]:
    """Every pool, the one with the most to lend first. ``shared`` puts all services into one pool."""
    groups: dict[str, list[Service]] = {}
    for service in services:
        groups.setdefault(ONE_POOL if shared else service.capacity.pool or service.name, []).append(service)
    result = [_view(name, members, settings_for(risk)) for name, members in groups.items()]
    return tuple(sorted(result, key=lambda pool: (-(pool.lendable or (-1,))[-1], pool.name)))


def _view(name: str, members: Sequence[Service], settings: LendingSettings) -> PoolView:
    measured = tuple(service for service in members if service.capacity.per_gpu)
    missing = tuple(service.name for service in members if not service.capacity.per_gpu)
    gpus = sum(service.capacity.gpus for service in measured)
    if not measured:
        why = "No demand has been measured and services.toml names no capacity, so nothing is lent."
        return PoolView(name, tuple(members), gpus, (), (Reason("NO_CAPACITY", why),), missing)
    pool = Pool(name, gpus, {h: [demand_of(service, h) for service in measured] for h in DEFAULT_HORIZONS_S})
    decision, _ = decide(pool, LendingState(), 0.0, settings)
    return PoolView(name, measured, gpus, lendable_curve(pool, settings), decision.reasons, missing)


def demand_of(service: Service, horizon_s: int) -> ServiceDemand:
    """What the policy wants to know; a refused or absent forecast leaves only the reactive rule."""
    capacity = service.capacity
    horizons = service.forecast.horizons if service.forecast else ()
    forecast = next((h.demand for h in horizons if h.horizon_s == horizon_s and not h.demand.refused), None)
    return ServiceDemand(
        service.name,
        recent_max(service),
        capacity.per_gpu or 1.0,
        dict(forecast.quantiles) if forecast else {},
        capacity.minimum,
        forecast.model if forecast else None,
    )


def recent_max(service: Service) -> float:
    """Largest demand of the last half hour; of all there is where that half hour is one gap."""
    values = service.series.value
    for part in (values[-max(1, _RECENT_S // service.series.step_s) :], values):
        finite = part[np.isfinite(part)]
        if len(finite):
            return float(finite.max())
    return 0.0


def own_pool(service: Service, risk: float = DEFAULT_RISK) -> PoolView:
    """The service by itself, for its row and its page."""
    return _view(service.name, [service], settings_for(risk))
