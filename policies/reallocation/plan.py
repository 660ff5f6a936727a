"""What a pool lends: ``policies.lending`` on forecasts where they are fresh, on what pods ask for where they are not.

Needs are kept for ``hold_s`` by the policy's own hold, so the reactive rule looks at what the pods ask for now: held,
that is its largest need of that time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from kopt.core.lending_pools import LendingPool, Verb
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.policies.lending import (
    LendingSettings,
    LendingState,
    Pool,
    ServiceDemand,
    decide,
    gpus_for,
    observe,
    provision_gpus,
)
from kopt.policies.lending_caution import CautionSettings, level_of

REACTIVE_MARGIN = 1.2
"""Times what the pods ask for, without forecasts; with fresh ones these say what may come on top."""
_ROUNDING_UP = 0.21
"""Whole GPUs are short less often than the quantile that is provisioned at: 2.12 instead of 2.33 for 1 %."""
_MOST_GPUS = 1_000_000
Quantiles = Mapping[float, float]


@dataclass(frozen=True)
class ServiceView:
    """``gpus`` are asked for by its pods, running and pending; ``forecast`` is demand by horizon (seconds), empty where
    there is none."""

    name: str
    gpus: int
    capacity_per_gpu: float
    minimum_gpus: int = 0
    forecast: Mapping[float, Quantiles] = field(default_factory=dict)
    model: ModelVersion | None = None


@dataclass(frozen=True)
class Plan:
    """``lent`` of the pool's GPUs, with the state for the next call.

    ``need_in_s``: in how many seconds the first of the GPUs that are in use by borrowers are needed; infinite where
    none is. ``caution`` is the probability provisioned at, None without forecasts.
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
    """With forecasts the caution is learned; without, the reactive rule stands alone."""
    hold_s, hysteresis = pool.hold_s, pool.hysteresis_gpus
    if not forecasts:
        return LendingSettings(reactive_margin=REACTIVE_MARGIN, hold_s=hold_s, hysteresis_gpus=hysteresis)
    caution = CautionSettings(violation=pool.violation_target)
    score = NormalDist().inv_cdf(1 - pool.violation_target) - _ROUNDING_UP
    caution = replace(caution, first=min(max(score, caution.lowest), caution.highest))
    return LendingSettings(reactive_margin=1.0, hold_s=hold_s, hysteresis_gpus=hysteresis, caution=caution)


def plan(pool: LendingPool, services: Sequence[ServiceView], borrowed: int, lead_s: float, state: LendingState,
         now_s: float) -> Plan:  # fmt: skip
    """``now_s`` is on the grid on which forecasts are asked for: promises are learned from at exactly their time.

    Forecasts count where every service has one up to ``lead_s``; else nothing new is lent.
    """
    forecasts = all(any(one >= lead_s for one in view.forecast) for view in services)
    settings = settings_for(pool, forecasts=forecasts)
    # Those that every service has something to say about.
    last_s = min(max(view.forecast, default=lead_s) for view in services)
    horizons = sorted({h for view in services for h in view.forecast if h <= last_s}) if forecasts else [lead_s]
    curve = {h: [_demand(view, h if forecasts else None) for view in services] for h in horizons}
    level = level_of(state.caution, settings.caution) if settings.caution else None
    decision, after = decide(Pool(pool.name, pool.gpus, curve), state, now_s, settings, pool.mode)
    reasons = decision.reasons
    if not forecasts and after.lent_gpus > state.lent_gpus:
        after = replace(after, lent_gpus=state.lent_gpus)
        why = "Forecasts are missing or old: nothing new is lent, and GPUs are taken back by what pods ask for."
        reasons = (Reason("NO_FORECAST", why), *reasons)
    change = after.lent_gpus - state.lent_gpus
    verb = Verb.LEND if change > 0 else Verb.RECLAIM if change < 0 else Verb.KEEP
    needs = {h: provision_gpus(demands, settings, level=level) for h, demands in curve.items()}
    p50, p99 = (_expected(services, lead_s, one) if forecasts else None for one in (0.5, 0.99))
    return Plan(
        verb, abs(change), after.lent_gpus, pool.gpus - after.lent_gpus,
        _need_in_s(pool, services, borrowed, needs, forecasts=forecasts), reasons, after,
        None if level is None else NormalDist().cdf(level), p50, p99, decision.models,
    )  # fmt: skip


def learned(pool: LendingPool, state: LendingState, need_gpus: int, now_s: float, seen_s: float) -> LendingState:
    """The state once all promises for moments up to ``now_s`` are settled; those more than ``seen_s`` ago were not
    seen. Without forecasts nothing is promised, and nothing learned."""
    settings = settings_for(pool, forecasts=True)
    for for_s, _ in state.caution.promised:
        if for_s <= now_s:
            state = observe(state, for_s, need_gpus if now_s - for_s <= seen_s else None, settings)
    return state


def _need_in_s(pool: LendingPool, services: Sequence[ServiceView], borrowed: int, needs: Mapping[float, int], *,
               forecasts: bool) -> float:  # fmt: skip
    left = pool.gpus - borrowed
    if sum(view.gpus for view in services) > left:
        return 0.0
    late = [h for h, need in needs.items() if need > left]
    if not late:
        return float("inf")
    # Without forecasts nobody knows when: the margin of the reactive rule is what there is time for.
    return min(late) if forecasts else 0.0


def _demand(view: ServiceView, horizon_s: float | None) -> ServiceDemand:
    quantiles = {} if horizon_s is None else _quantiles(view, horizon_s)
    return ServiceDemand(view.name, view.gpus * view.capacity_per_gpu, view.capacity_per_gpu, quantiles,
                         view.minimum_gpus, view.model)  # fmt: skip


def _quantiles(view: ServiceView, horizon_s: float) -> Quantiles:
    """A forecast beyond all sense counts as one that no pool can meet: figures stay ones that can be written."""
    most = _MOST_GPUS * view.capacity_per_gpu
    found = view.forecast[min(h for h in view.forecast if h >= horizon_s)]
    return {q: min(amount, most) for q, amount in found.items()}


def _expected(services: Sequence[ServiceView], lead_s: float, probability: float) -> int | None:
    total = 0.0
    for view in services:
        quantiles = _quantiles(view, lead_s)
        known = [q for q in quantiles if q >= probability - 1e-9]
        if not known:
            return None
        total += quantiles[min(known)] / view.capacity_per_gpu
    return gpus_for(total, 1.0)
