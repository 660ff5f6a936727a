"""How cautious lending has to be, learned from how often GPUs were missing.

A quantile of the demand is not a quantile of whole GPUs: rounding up keeps more than requested, and forecasts for a
service outside of the training data may be overconfident. So the level to provision at moves: up by ``step`` when GPUs
were missing, down by the violation target's share of that when they were not. In the long run this meets the target
whatever the demand does (adaptive conformal inference; Gibbs and Candès, NeurIPS 2021).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

_SCORES = NormalDist()


@dataclass(frozen=True)
class CautionSettings:
    """``violation`` is the share of the time at which GPUs may be missing. Levels are normal scores: 2.12 is the
    98.3 % quantile, at which whole GPUs are missing about 1 % of the time. Raises ValueError out of range."""

    violation: float = 0.01
    first: float = 2.12
    step: float = 0.06
    lowest: float = 0.5
    highest: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.violation < 1 and self.step >= 0 and self.lowest <= self.first <= self.highest):
            raise ValueError(f"{self}: a violation in (0, 1), a step of at least 0, and lowest <= first <= highest")


@dataclass(frozen=True)
class Caution:
    """The level (None before the first observation), and promises as (time in seconds, GPUs), earliest first."""

    level: float | None = None
    promised: tuple[tuple[float, int], ...] = ()


def level_of(caution: Caution, settings: CautionSettings) -> float:
    return settings.first if caution.level is None else caution.level


def promise(caution: Caution, for_s: float, gpus: int) -> Caution:
    """Record that ``gpus`` will be available at ``for_s``; an earlier promise for that time or a later one stays."""
    if caution.promised and for_s <= caution.promised[-1][0]:
        return caution
    return replace(caution, promised=(*caution.promised, (for_s, gpus)))


def learn(caution: Caution, at_s: float, need_gpus: int | None, settings: CautionSettings | None = None) -> Caution:
    """Learn from the need at ``at_s``, None if it was not observed. Older promises are dropped: nothing is learned
    from times that were not observed."""
    settings = settings or CautionSettings()
    due = [gpus for for_s, gpus in caution.promised if for_s == at_s]
    remaining = tuple(item for item in caution.promised if item[0] > at_s)
    if not due or need_gpus is None:
        return replace(caution, promised=remaining)
    short = need_gpus > due[0]
    level = level_of(caution, settings) + settings.step * (short - settings.violation)
    return Caution(min(max(level, settings.lowest), settings.highest), remaining)


def at_level(quantiles: Mapping[float, float], level: float) -> float:
    """The demand at a normal score: linear in the logarithm between the given quantiles, and a little beyond them.

    Raises ValueError without quantiles.
    """
    if not quantiles:
        raise ValueError("at least one quantile is required")
    points = sorted(quantiles.items())
    scores = [_SCORES.inv_cdf(item) for item, _ in points]
    if len(points) == 1 or level <= scores[0]:
        return points[0][1]
    after = next((number for number, score in enumerate(scores) if score >= level), len(scores) - 1)
    # Extrapolate by the slope of the last two quantiles: demand can exceed an overconfident forecast.
    low, high = (math.log(max(value, 1e-12)) for _, value in points[after - 1 : after + 1])
    share = (level - scores[after - 1]) / (scores[after] - scores[after - 1])
    result = math.exp(low + share * max(0.0, high - low))
    return result if result > 1e-9 else 0.0
