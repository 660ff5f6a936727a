"""Whether a run is cheaper on capacity that may be taken away: interruption hazard × lost work × price.

With a hazard of h interruptions an hour, and L hours of work and restart lost by each, a run that needs T hours pays
for X = T + h X L, so X = T / (1 - h L). Spot is cheaper where h L < 1 - spot price / on-demand price, however long the
run is.
"""

import math
from dataclasses import dataclass

_Z = 1.645
"""One-sided, 95 %."""
_HOUR_S = 3600.0


@dataclass(frozen=True)
class SpotQuestion:
    """A run of ``run_s`` useful seconds. ``interruptions`` were counted in ``observed_s`` of such capacity; each loses
    ``lost_s`` since the last checkpoint and ``restart_s`` until the job computes again. Prices are of the same GPUs, in
    millionths an hour."""

    run_s: float
    interruptions: int
    observed_s: float
    lost_s: float
    restart_s: float
    on_demand_micro: int
    spot_micro: int


@dataclass(frozen=True)
class SpotAdvice:
    """``hazard`` and ``hazard_high``, the upper bound that the advice rests on, are per hour; ``most_hazard`` is where
    both cost the same. Times and amounts are expected ones at ``hazard_high``; infinite where it is never done."""

    use_spot: bool
    hazard: float
    hazard_high: float
    most_hazard: float
    spot_s: float
    spot_micro: float
    on_demand_micro: float
    reason: str


def spot_advice(question: SpotQuestion) -> SpotAdvice:
    """Yes only where spot is cheaper at the upper bound of the hazard. Raises ValueError for times that
    cannot be, and prices of 0."""
    if (
        question.run_s <= 0
        or question.observed_s <= 0
        or min(question.interruptions, question.lost_s, question.restart_s) < 0
    ):
        raise ValueError("a run and the time in which interruptions were counted are above 0, losses not below")
    if question.on_demand_micro <= 0 or question.spot_micro < 0:
        raise ValueError("the on-demand price is above 0, the spot price not below")
    hours = question.observed_s / _HOUR_S
    hazard, high = question.interruptions / hours, _upper(question.interruptions) / hours
    lost_h = (question.lost_s + question.restart_s) / _HOUR_S
    share = high * lost_h
    spot_s = question.run_s / (1 - share) if share < 1 else math.inf
    saves = 1 - question.spot_micro / question.on_demand_micro
    on_demand = question.run_s / _HOUR_S * question.on_demand_micro
    spot = spot_s / _HOUR_S * question.spot_micro if math.isfinite(spot_s) else math.inf
    most = max(0.0, saves / lost_h) if lost_h else math.inf
    reason = _reason(cheaper=spot < on_demand, share=share, saves=saves)
    return SpotAdvice(spot < on_demand, hazard, high, most, spot_s, spot, on_demand, reason)


def _upper(count: int) -> float:
    """95 % upper bound of a Poisson mean of which ``count`` were seen (Wilson and Hilferty, 1931)."""
    degrees = count + 1
    return float(degrees * (1 - 1 / (9 * degrees) + _Z / (3 * math.sqrt(degrees))) ** 3)


def _reason(*, cheaper: bool, share: float, saves: float) -> str:
    loses = f"interruptions lose at most {min(share, 1):.0%} of the time it pays for"
    if share >= 1:
        return "interruptions may come faster than it saves its work: it would never be done"
    if not cheaper:
        return f"{loses}, and the price is only {saves:.0%} lower"
    return f"{loses}, and the price is {saves:.0%} lower"
