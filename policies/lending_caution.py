"""How cautious lending has to be, learned from how often it fell short.

A quantile of the demand is no quantile of whole GPUs: rounding up keeps more than was asked for, and forecasts of a
service that nobody trained on may be too sure. So the level to provision at moves: up by ``step`` for a moment at which
GPUs were missing, down by the violation target's share of that for one at which they were not, which in the long run
meets the target whatever the demand does (adaptive conformal inference; Gibbs and Candès, NeurIPS 2021).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

_SCORES = NormalDist()


@dataclass(frozen=True)
class CautionSettings:
    """``violation`` is the share of moments at which GPUs may be missing. Levels are normal scores: 2.12 is the
    98.3 % quantile, at which whole GPUs are short about one moment in a hundred. Raises ValueError out of range."""

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
    """The level reached, and what was promised: (for when in seconds, GPUs), the earliest first. None: not begun."""

    level: float | None = None
    promised: tuple[tuple[float, int], ...] = ()


def level_of(caution: Caution, settings: CautionSettings) -> float:
    return settings.first if caution.level is None else caution.level


def promise(caution: Caution, for_s: float, gpus: int) -> Caution:
    """Remember that ``gpus`` will be there at ``for_s``; a promise for a moment that has one stays the first."""
    if caution.promised and for_s <= caution.promised[-1][0]:
        return caution
    return replace(caution, promised=(*caution.promised, (for_s, gpus)))


def learn(caution: Caution, at_s: float, need_gpus: int | None, settings: CautionSettings | None = None) -> Caution:
    """The need at ``at_s`` is known, or None where it never will be. Older promises are dropped: nothing is learned
    from moments that were not seen."""
    settings = settings or CautionSettings()
    due = [gpus for for_s, gpus in caution.promised if for_s == at_s]
    left = tuple(one for one in caution.promised if one[0] > at_s)
    if not due or need_gpus is None:
        return replace(caution, promised=left)
    short = need_gpus > due[0]
    level = level_of(caution, settings) + settings.step * (short - settings.violation)
    return Caution(min(max(level, settings.lowest), settings.highest), left)


def at_level(quantiles: Mapping[float, float], level: float) -> float:
    """The demand at a normal score: between known quantiles, and a little beyond them, on a line in the logarithm.

    Raises ValueError where no quantile is known.
    """
    if not quantiles:
        raise ValueError("no quantile is known")
    known = sorted(quantiles.items())
    scores = [_SCORES.inv_cdf(one) for one, _ in known]
    if len(known) == 1 or level <= scores[0]:
        return known[0][1]
    after = next((number for number, score in enumerate(scores) if score >= level), len(scores) - 1)
    # Beyond the last one by the slope of the last two: a forecast that is too sure can still be outgrown.
    low, high = (math.log(max(value, 1e-12)) for _, value in known[after - 1 : after + 1])
    share = (level - scores[after - 1]) / (scores[after] - scores[after - 1])
    found = math.exp(low + share * max(0.0, high - low))
    return found if found > 1e-9 else 0.0
