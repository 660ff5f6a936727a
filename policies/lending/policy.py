"""How many GPUs inference services can lend to jobs, and for how long.

``provision = max(reactive, forecast)``: a forecast may only add to what the reactive rule asks for, never take from
it. What a pool holds beyond its provision can be lent. Lent GPUs are whole: amounts are multiples of 1,000 milli-GPU.

With ``LendingSettings.caution`` the quantile is learned from how often GPUs were missing (``observe``).

The hold keeps a need for ``hold_s`` after it was last seen, so that a dip does not lend what the next peak reclaims.
State is passed in and returned; the caller keeps it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from kopt.core.decision import Action, Decision, Mode
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, MilliGpu, counted, format_gpus
from kopt.policies.lending.caution import Caution, CautionSettings, at_level, learn, level_of, promise

POLICY = "lending"
ROUNDING = 1e-9
"""Relative; keeps 3.0000000001 GPUs, an artefact of division, from becoming 4."""


@dataclass(frozen=True)
class LendingSettings:
    """How careful lending is. Raises ValueError for values out of range."""

    quantile: float = 0.99
    """Forecast quantile to provision at; 0.99 aims at 1 % of the time under-provisioned."""
    reactive_margin: float = 1.2
    """Times the largest demand of the last half hour: the rule without a forecast."""
    hold_s: float = 1800.0
    """A need stays this long after it was last seen."""
    hysteresis_gpus: int = 1
    """More is lent only when the provision has fallen by at least this many GPUs."""
    correlation: float = 1.0
    """Between the forecast errors of a pool's services: 1 adds up quantiles (always safe), 0 takes them as
    independent."""
    caution: CautionSettings | None = None
    """Instead of ``quantile``: provision at the level that the misses seen so far ask for."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1:
            raise ValueError(f"quantile {self.quantile:g} is not in [0.5, 1)")
        if self.reactive_margin < 1 or self.hold_s < 0 or self.hysteresis_gpus < 0 or not 0 <= self.correlation <= 1:
            raise ValueError(f"{self} is out of range: margin >= 1, hold and hysteresis >= 0, correlation in [0, 1]")


@dataclass(frozen=True)
class ServiceDemand:
    """One service's forecast at one horizon, in units per bucket; ``capacity_per_gpu`` in the same unit.

    ``recent_max`` is the largest demand of the last half hour. ``quantiles`` maps probabilities to demand and may be
    empty (no forecast: the reactive rule alone counts).
    """

    name: str
    recent_max: float
    capacity_per_gpu: float
    quantiles: Mapping[float, float] = field(default_factory=dict)
    minimum_gpus: int = 1
    model: ModelVersion | None = None

    def __post_init__(self) -> None:
        amounts = (self.recent_max, *self.quantiles.values())
        if not self.capacity_per_gpu > 0 or any(not (math.isfinite(a) and a >= 0) for a in amounts):
            raise ValueError(f"service {self.name!r}: demand must be finite and not negative, capacity positive")
        if self.minimum_gpus < 0:
            raise ValueError(f"service {self.name!r}: a minimum of {self.minimum_gpus} GPUs")


@dataclass(frozen=True)
class Pool:
    """GPUs that some services share. ``curve`` holds their forecasts by horizon (seconds), the shortest first.

    ``pooled`` may carry forecasts made of the services' summed demand in GPUs, by horizon: they know how peaks cancel
    and are used where they ask for less than the sum, never for less than the reactive rule.
    """

    name: str
    gpus: int
    curve: Mapping[float, Sequence[ServiceDemand]]
    pooled: Mapping[float, Mapping[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.curve or any(not services for services in self.curve.values()):
            raise ValueError(f"pool {self.name!r} has no services to provision for")

    @property
    def minimum_gpus(self) -> int:
        """The guaranteed minimum: the sum of the services' own."""
        return sum(service.minimum_gpus for service in next(iter(self.curve.values())))


@dataclass(frozen=True)
class CurvePoint:
    """What can be lent until ``horizon_s``: to a job that long, the worst moment until then counts."""

    horizon_s: float
    provision: MilliGpu
    lendable: MilliGpu


@dataclass(frozen=True)
class LendingState:
    """Between two decisions: recent needs as (time, GPUs), oldest first, falling; the GPUs that are lent; the caution
    reached."""

    recent: tuple[tuple[float, int], ...] = ()
    lent_gpus: int = 0
    caution: Caution = Caution()


def gpus_for(demand: float, capacity_per_gpu: float) -> int:
    """Whole GPUs that serve ``demand`` (units per bucket)."""
    return math.ceil(demand / capacity_per_gpu * (1 - ROUNDING))


def provision_gpus(
    services: Sequence[ServiceDemand],
    settings: LendingSettings,
    pooled: Mapping[float, float] | None = None,
    level: float | None = None,
) -> int:
    """GPUs to keep for services that share a pool: ``max(reactive, forecast)``, at least the minimum.

    ``level`` is a normal score to provision at instead of the settings' quantile.
    """
    reactive = sum(settings.reactive_margin * s.recent_max / s.capacity_per_gpu for s in services)
    forecast = _pooled_forecast(services, settings, level)
    if pooled and (pooled_forecast := _upper(pooled, settings, level)) is not None:
        forecast = min(forecast, pooled_forecast)
    floor = sum(service.minimum_gpus for service in services)
    return max(floor, gpus_for(max(reactive, forecast), 1.0))


def _pooled_forecast(services: Sequence[ServiceDemand], settings: LendingSettings, level: float | None) -> float:
    """GPUs at the quantile: medians add up, distances from them as errors of the given correlation do."""
    median = spread = squares = 0.0
    for service in services:
        upper = _upper(service.quantiles, settings, level)
        if upper is None:
            continue
        middle = min(_at_quantile(service.quantiles, 0.5) or 0.0, upper)
        distance = (upper - middle) / service.capacity_per_gpu
        median += middle / service.capacity_per_gpu
        spread += distance
        squares += distance * distance
    rho = settings.correlation
    return median + math.sqrt((1 - rho) * squares + rho * spread * spread)


def _upper(quantiles: Mapping[float, float], settings: LendingSettings, level: float | None) -> float | None:
    """The demand to provision for; None without a forecast."""
    if level is None:
        return _at_quantile(quantiles, settings.quantile)
    return at_level(quantiles, level) if quantiles else None


def _at_quantile(quantiles: Mapping[float, float], wanted: float) -> float | None:
    """The value at the lowest known probability that is at least ``wanted``, else the highest known."""
    if not quantiles:
        return None
    at_least = [q for q in quantiles if q >= wanted - ROUNDING]
    return quantiles[min(at_least) if at_least else max(quantiles)]


def lendable_curve(pool: Pool, settings: LendingSettings, level: float | None = None) -> tuple[CurvePoint, ...]:
    """Lendable GPUs over the horizons, never rising: a loan until an hour from now must survive the peak at half."""
    points, worst = [], 0
    for horizon_s in sorted(pool.curve):
        worst = max(worst, provision_gpus(pool.curve[horizon_s], settings, pool.pooled.get(horizon_s), level))
        points.append(CurvePoint(horizon_s, _milli(worst), _milli(max(0, pool.gpus - worst))))
    return tuple(points)


def hold(state: LendingState, need_gpus: int, now_s: float, hold_s: float) -> tuple[int, LendingState]:
    """The largest need of the last ``hold_s`` seconds (at least the present one), and the state to keep.

    Only needs that can still become the maximum are kept, so the state stays short. A clock that goes back counts as
    standing still until it has caught up: it neither shortens a hold nor brings one back.
    """
    if state.recent:
        now_s = max(now_s, state.recent[-1][0])
    alive = [(at_s, gpus) for at_s, gpus in state.recent if at_s >= now_s - hold_s and gpus > need_gpus]
    recent = (*alive, (now_s, need_gpus))
    return max(gpus for _, gpus in recent), replace(state, recent=recent)


def observe(state: LendingState, at_s: float, need_gpus: int | None, settings: LendingSettings) -> LendingState:
    """What the services needed at ``at_s``, a time that ``decide`` was about, or None if that was not seen."""
    if settings.caution is None:
        return state
    return replace(state, caution=learn(state.caution, at_s, need_gpus, settings.caution))


def decide(
    pool: Pool, state: LendingState, now_s: float, settings: LendingSettings | None = None, mode: Mode = Mode.OBSERVE
) -> tuple[Decision, LendingState]:
    """Lend or reclaim whole GPUs of a pool over its longest horizon, with the state for the next call.

    With ``settings.caution`` the decision is a promise for that horizon, from which ``observe`` learns.
    """
    settings = settings or LendingSettings()
    level = None
    if settings.caution:
        level = level_of(state.caution, settings.caution)
        settings = replace(settings, quantile=NormalDist().cdf(level))
    curve = lendable_curve(pool, settings, level)
    need = curve[-1].provision // WHOLE_GPU
    held, after_hold = hold(state, need, now_s, settings.hold_s)
    before = max(0, pool.gpus - state.lent_gpus)
    wanted = min(max(held, pool.minimum_gpus), pool.gpus)
    if 0 < before - wanted < settings.hysteresis_gpus:
        wanted = before
    reasons = _reasons(pool, settings, curve, need, held, wanted)
    models = tuple(dict.fromkeys(s.model for services in pool.curve.values() for s in services if s.model))
    decision = Decision(POLICY, mode, _actions(pool, before, wanted), reasons, models)
    promised = promise(state.caution, now_s + curve[-1].horizon_s, wanted) if settings.caution else state.caution
    return decision, LendingState(after_hold.recent, pool.gpus - wanted, promised)


def _actions(pool: Pool, before: int, after: int) -> tuple[Action, ...]:
    if before == after:
        return ()
    verb = "lend" if after < before else "reclaim"
    return (Action(verb, pool.name, _milli(abs(before - after)), "milli-gpu"),)


def _reasons(
    pool: Pool, settings: LendingSettings, curve: Sequence[CurvePoint], need: int, held: int, wanted: int
) -> tuple[Reason, ...]:
    last = curve[-1]
    services = pool.curve[max(pool.curve)]
    numbers: dict[str, float | int | str] = {
        "gpus": pool.gpus,
        "provision_gpus": wanted,
        "lendable_milli_gpu": _milli(pool.gpus - wanted),
        "quantile": settings.quantile,
        "horizon_s": last.horizon_s,
        "minimum_gpus": pool.minimum_gpus,
    }
    text = (
        f"Pool {pool.name} holds {counted(pool.gpus, 'GPU')}; up to {need} may be needed by "
        f"{counted(len(services), 'service')} within "
        f"{last.horizon_s / 60:g} minutes at quantile {settings.quantile:g}, so "
        f"{format_gpus(_milli(pool.gpus - wanted))} can be lent."
    )
    reasons = [Reason("PROVISION", text, numbers)]
    if need > pool.gpus:
        reasons.append(
            Reason(
                "SHORT",
                f"The need of {need} GPUs is more than the {pool.gpus} of the pool; nothing can "
                "be lent, add GPUs or capacity.",
                {"need_gpus": need, "gpus": pool.gpus},
            )
        )
    if held > need:
        reasons.append(
            Reason(
                "HOLD",
                f"{held} GPUs were needed within the last {settings.hold_s / 60:g} minutes and stay provisioned.",
                {"held_gpus": held, "need_gpus": need},
            )
        )
    elif wanted > max(held, pool.minimum_gpus):
        reasons.append(
            Reason(
                "HYSTERESIS",
                f"A change of less than {settings.hysteresis_gpus} GPUs is left alone.",
                {"hysteresis_gpus": settings.hysteresis_gpus},
            )
        )
    if any(not service.quantiles for service in services):
        reasons.append(Reason("REACTIVE_ONLY", "Some services have no forecast; the reactive rule counts for them."))
    return tuple(reasons)


def _milli(gpus: int) -> MilliGpu:
    return MilliGpu(gpus * WHOLE_GPU)
