"""What a pool lends: by fresh forecasts where there are any, otherwise by the requests of the services' pods.

The policy's own hold keeps needs for ``hold_s``, so the reactive rule only needs the pods' current requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.scheduling.lending_pool import LendingPool, Verb
from kopt.policies.lending.caution import CautionSettings, level_of
from kopt.policies.lending.policy import (
    LendingSettings,
    LendingState,
    Pool,
    ServiceDemand,
    decide,
    gpus_for,
    observe,
    provision_gpus,
)

REACTIVE_MARGIN = 1.2
"""Factor on the pods' requests without forecasts; fresh forecasts say how much more demand may come."""
_ROUNDING_UP = 0.21
"""Whole GPUs are missing less often than the provisioned quantile implies: 2.12 instead of 2.33 for 1 %."""
_MOST_GPUS = 1_000_000
Quantiles = Mapping[float, float]


@dataclass(frozen=True)
class ServiceSnapshot:
    """``gpus`` are requested by its running and pending pods; ``forecast`` is demand by horizon (seconds), or empty."""

    name: str
    gpus: int
    capacity_per_gpu: float
    minimum_gpus: int = 0
    forecast: Mapping[float, Quantiles] = field(default_factory=dict)
    model: ModelVersion | None = None


@dataclass(frozen=True)
class Plan:
    """``lent`` of the pool's GPUs, with the state for the next call.

    ``need_in_s``: seconds until the first of the borrowed GPUs are needed, infinite if none are. ``caution`` is the
    probability that is provisioned at, None without forecasts.
    """

    verb: Verb
    gpus: int
    lent: int
    provision: int
    need_in_s: float
    reasons: tuple[Reason, ...]
    state: LendingState
    caution: float | None = None
    p50: int | None = None
    p99: int | None = None
    models: tuple[ModelVersion, ...] = ()


def settings_for(pool: LendingPool, *, forecasts: bool) -> LendingSettings:
    """With forecasts the caution is learned; without them only the reactive rule applies."""
    hold_s, hysteresis = pool.hold_s, pool.hysteresis_gpus
    if not forecasts:
        return LendingSettings(reactive_margin=REACTIVE_MARGIN, hold_s=hold_s, hysteresis_gpus=hysteresis)
    caution = CautionSettings(violation=pool.violation_target)
    score = NormalDist().inv_cdf(1 - pool.violation_target) - _ROUNDING_UP
    caution = replace(caution, first=min(max(score, caution.lowest), caution.highest))
    return LendingSettings(reactive_margin=1.0, hold_s=hold_s, hysteresis_gpus=hysteresis, caution=caution)


def plan(
    pool: LendingPool,
    services: Sequence[ServiceSnapshot],
    borrowed: int,
    lead_s: float,
    state: LendingState,
    now_s: float,
) -> Plan:
    """``now_s`` is on the grid of the forecasts: a promise is evaluated at exactly its time.

    Forecasts count only if every service has one up to ``lead_s``; otherwise nothing new is lent.
    """
    forecasts = all(any(value >= lead_s for value in service.forecast) for service in services)
    settings = settings_for(pool, forecasts=forecasts)
    # The horizons that every service has a forecast for.
    last_s = min(max(service.forecast, default=lead_s) for service in services)
    horizons = sorted({h for service in services for h in service.forecast if h <= last_s}) if forecasts else [lead_s]
    curve = {h: [_demand(service, h if forecasts else None) for service in services] for h in horizons}
    level = level_of(state.caution, settings.caution) if settings.caution else None
    decision, after = decide(Pool(pool.name, pool.gpus, curve), state, now_s, settings)
    reasons = decision.reasons
    if not forecasts and after.lent_gpus > state.lent_gpus:
        after = replace(after, lent_gpus=state.lent_gpus)
        why = "Forecasts are missing or stale: nothing new is lent, and GPUs are reclaimed by the requests of the pods."
        reasons = (Reason("NO_FORECAST", why), *reasons)
    change = after.lent_gpus - state.lent_gpus
    verb = Verb.LEND if change > 0 else Verb.RECLAIM if change < 0 else Verb.KEEP
    needs = {h: provision_gpus(demands, settings, level=level) for h, demands in curve.items()}
    p50, p99 = (_expected(services, lead_s, value) if forecasts else None for value in (0.5, 0.99))
    return Plan(
        verb,
        abs(change),
        after.lent_gpus,
        pool.gpus - after.lent_gpus,
        _need_in_s(pool, services, borrowed, needs, forecasts=forecasts),
        reasons,
        after,
        None if level is None else NormalDist().cdf(level),
        p50,
        p99,
        decision.models,
    )


def learned(pool: LendingPool, state: LendingState, need_gpus: int, now_s: float, observed_s: float) -> LendingState:
    """The state once all promises for moments up to ``now_s`` are settled; those more than ``observed_s`` ago were not
    seen. Without forecasts nothing is promised, and nothing learned."""
    settings = settings_for(pool, forecasts=True)
    for for_s, _ in state.caution.promised:
        if for_s <= now_s:
            state = observe(state, for_s, need_gpus if now_s - for_s <= observed_s else None, settings)
    return state


def _need_in_s(
    pool: LendingPool,
    services: Sequence[ServiceSnapshot],
    borrowed: int,
    needs: Mapping[float, int],
    *,
    forecasts: bool,
) -> float:
    remaining = pool.gpus - borrowed
    if sum(service.gpus for service in services) > remaining:
        return 0.0
    late = [h for h, need in needs.items() if need > remaining]
    if not late:
        return float("inf")
    # Without forecasts the time of the need is unknown, so the margin of the reactive rule is reclaimed at once.
    return min(late) if forecasts else 0.0


def _demand(service: ServiceSnapshot, horizon_s: float | None) -> ServiceDemand:
    quantiles = {} if horizon_s is None else _quantiles(service, horizon_s)
    return ServiceDemand(
        service.name,
        service.gpus * service.capacity_per_gpu,
        service.capacity_per_gpu,
        quantiles,
        service.minimum_gpus,
        service.model,
    )


def _quantiles(service: ServiceSnapshot, horizon_s: float) -> Quantiles:
    """Implausibly large forecasts are capped at what no pool can meet, so that figures stay serializable."""
    most = _MOST_GPUS * service.capacity_per_gpu
    result = service.forecast[min(h for h in service.forecast if h >= horizon_s)]
    return {q: min(amount, most) for q, amount in result.items()}


def _expected(services: Sequence[ServiceSnapshot], lead_s: float, probability: float) -> int | None:
    total = 0.0
    for service in services:
        quantiles = _quantiles(service, lead_s)
        sufficient = [q for q in quantiles if q >= probability - 1e-9]
        if not sufficient:
            return None
        total += quantiles[min(sufficient)] / service.capacity_per_gpu
    return gpus_for(total, 1.0)
