"""How far to trust the learned part: how much of its correction to take, and how wide the interval must be.

Both come from families of models that were held out whole, since rows of one family are not exchangeable with those of
the next. The correction of a group of questions is taken by the part that made held-out families' errors least; the
interval is conformal (Vovk et al. 2005; Romano et al. 2019, arXiv:1905.03222) per group (Mondrian), small groups drawn
towards all together. Questions beyond the range of what was seen are judged by held-out families that were beyond the
others' range, kinds of questions never seen by sources, and by kinds of questions, that were held out whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kopt.models.sizing.residual import Corrections
from kopt.models.sizing.table import INPUTS, Array, Names

BELOW, ABOVE = 0.03, 0.02
"""Shares of runs that may lie below and above the interval: .95 inside, and .02 fail when given its upper end."""
PROBABILITY = 1 - BELOW - ABOVE
WORTH = 8.0
"""Families that the pooled scores are worth beside a group's own."""
_MARGIN = 0.5
"""Part of an input's range by which it may be exceeded before the question counts as outside."""
_OUTSIDE_FACTOR = 1.5
"""On the thresholds outside of what was seen, where too little could be held out to measure it."""
_FURTHEST = float(np.log(8.0))
"""Half of the widest interval, in logarithms: beyond, a whole GPU is the answer anyway."""
_NARROWEST, _WIDEST = 0.9, 1.2
"""The trees' own widths count within these multiples of the group's typical error."""
_LEAST_SCALE = 0.003
_TRUST = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True)
class GroupErrors:
    """A group of questions: the part of the correction that is taken, the typical error in logarithms, thresholds in
    multiples of widths, and how many runs and families they rest on."""

    trust: float
    scale: float
    below: float
    above: float
    runs: int = 0
    families: int = 0

    def to_dict(self) -> dict[str, float]:
        return dict(vars(self))


@dataclass(frozen=True)
class Calibration:
    """Facts per group, of questions ``beyond`` the ranges of inputs (F,) that were seen, and of groups never seen."""

    groups: Mapping[str, GroupErrors]
    beyond: GroupErrors
    unseen: GroupErrors
    lowest: Array = field(default_factory=lambda: np.full(len(INPUTS), -np.inf))
    highest: Array = field(default_factory=lambda: np.full(len(INPUTS), np.inf))

    def of(self, group: str, outside: bool) -> GroupErrors:
        """Outside of what was seen never narrower than inside."""
        inside = self.groups.get(group, self.unseen)
        if not outside or inside is self.unseen:
            return inside
        return GroupErrors(
            inside.trust,
            inside.scale,
            max(inside.below, self.beyond.below),
            max(inside.above, self.beyond.above),
            inside.runs,
            inside.families,
        )

    def outside(self, inputs: Array) -> tuple[str, ...]:
        """Names of inputs (F,) beyond what was seen; a value where there was never one counts as well."""
        return tuple(INPUTS[n] for n in np.flatnonzero(beyond(inputs[None], self.lowest, self.highest)[0]))

    def to_dict(self) -> dict[str, Any]:
        return {
            "below": BELOW,
            "above": ABOVE,
            "groups": {key: item.to_dict() for key, item in sorted(self.groups.items())},
            "beyond": self.beyond.to_dict(),
            "unseen": self.unseen.to_dict(),
            "lowest": [_plain(item) for item in self.lowest],
            "highest": [_plain(item) for item in self.highest],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for what ``to_dict`` did not write."""
        if (document["below"], document["above"]) != (BELOW, ABOVE) or len(document["lowest"]) != len(INPUTS):
            raise ValueError("calibrated for other levels or inputs; train the model again")
        made = cls(
            {str(key): GroupErrors(**item) for key, item in document["groups"].items()},
            GroupErrors(**document["beyond"]),
            GroupErrors(**document["unseen"]),
            np.array([np.inf if bound is None else bound for bound in document["lowest"]]),
            np.array([-np.inf if bound is None else bound for bound in document["highest"]]),
        )
        for item in (*made.groups.values(), made.beyond, made.unseen):
            if not np.isfinite(list(vars(item).values())).all() or min(vars(item).values()) < 0:
                raise ValueError("a threshold is no amount")
        return made


def interval(corrections: Corrections, groups: "list[GroupErrors]") -> Array:
    """Centre, low and high in bytes (n, 3)."""
    trust, below, above = (np.array([getattr(group, name) for group in groups]) for name in ("trust", "below", "above"))
    centre = corrections.base + trust * corrections.correction
    scale = np.array([group.scale for group in groups])
    low = centre - np.minimum(below * _width(corrections.below, scale), _FURTHEST)
    high = centre + np.minimum(above * _width(corrections.above, scale), _FURTHEST)
    result: Array = np.exp(np.column_stack([centre, low, high]))
    return result


def beyond(inputs: Array, lowest: Array, highest: Array) -> Any:
    """Which inputs (n, F) lie beyond ranges (F,)."""
    room = _MARGIN * np.where(np.isfinite(highest - lowest), highest - lowest, 0.0) + 1e-9
    return np.isfinite(inputs) & ((inputs < lowest - room) | (inputs > highest + room))


def ranges(inputs: Array) -> tuple[Array, Array]:
    """Lowest and highest of each input (F,); an input never given has an empty range."""
    is_finite = np.isfinite(inputs)
    return np.where(is_finite, inputs, np.inf).min(0), np.where(is_finite, inputs, -np.inf).max(0)


def calibrate(
    held_out: Corrections,
    apart: Sequence[Corrections],
    measured: Array,
    families: Names,
    groups: Names,
    inputs: Array,
    strange: Any,
    doubt: float = WORTH,
) -> Calibration:
    """From corrections (n,) of rows whose family was held out, and ``apart`` of rows whose whole source was, and whose
    whole group was, where there are more than one; ``measured`` are bytes, ``strange`` (n,) marks rows beyond the range
    of the rows they were held out from. ``doubt`` is how many families it takes to believe half of a correction.
    """
    truth = np.log(measured)
    trust = {str(item): _trust(held_out, truth, families, groups == item, doubt) for item in np.unique(groups)}
    trusted = np.array([trust[str(item)] for item in groups])
    missed = truth - held_out.base - trusted * held_out.correction
    scales = {str(item): max(_typical(missed, families, groups == item), _LEAST_SCALE) for item in np.unique(groups)}
    scale = np.array([scales[str(item)] for item in groups])
    scores = _scores(held_out, missed, scale)
    pooled = _thresholds(scores)
    result = {}
    for group in np.unique(groups):
        own = groups == group
        count = len(np.unique(families[own]))
        share = count / (count + WORTH)
        below, above = (
            _between(mine, all_, share) for mine, all_ in zip(_thresholds(scores[own]), pooled, strict=True)
        )
        name = str(group)
        result[name] = GroupErrors(trust[name], scales[name], below, above, int(own.sum()), count)
    below, above = (_OUTSIDE_FACTOR * value for value in pooled)
    if len(np.unique(families[strange])) >= WORTH:
        below, above = map(max, pooled, _thresholds(scores[strange]))
    outside = GroupErrors(1.0, float(np.median(scale)), below, above)
    return Calibration(result, outside, _unseen(apart, truth, trusted, scale, pooled), *ranges(inputs))


def _unseen(
    apart: Sequence[Corrections], truth: Array, trusted: Array, scale: Array, pooled: tuple[float, float]
) -> GroupErrors:
    """What holds for sources and groups that were held out whole, the worse of the two and of the pooled figures, and
    something on top, since there are few of either."""
    trust, typical = float(np.median(trusted)), float(np.median(scale))
    below, above = pooled
    for corrections in apart:
        missed = truth - corrections.base - trust * corrections.correction
        low, high = _thresholds(_scores(corrections, missed, np.full_like(scale, typical)))
        below, above = max(below, low), max(above, high)
    return GroupErrors(trust, typical, _OUTSIDE_FACTOR * below, _OUTSIDE_FACTOR * above)


def _trust(corrections: Corrections, truth: Array, families: Names, own: Any, doubt: float) -> float:
    """The part of the correction with the least mean error over held-out families, less where these are few beside
    ``doubt``."""
    count = len(np.unique(families[own]))
    losses = []
    for part in _TRUST:
        missed = np.abs(truth[own] - corrections.base[own] - part * corrections.correction[own])
        losses.append(np.mean([missed[families[own] == family].mean() for family in np.unique(families[own])]))
    return float(_TRUST[int(np.argmin(losses))]) * count / (count + doubt)


def _typical(missed: Array, families: Names, own: Any) -> float:
    """The mean over families of the median error."""
    return float(
        np.mean([np.median(np.abs(missed[own & (families == family)])) for family in np.unique(families[own])])
    )


def _width(half: Array, scale: Array) -> Array:
    result: Array = np.clip(half, _NARROWEST * scale, _WIDEST * scale)
    return result


def _scores(corrections: Corrections, missed: Array, scale: Array) -> Array:
    """How many widths (n, 2) each row came out below and above its centre."""
    return np.column_stack([-missed / _width(corrections.below, scale), missed / _width(corrections.above, scale)])


def _thresholds(scores: Array) -> tuple[float, float]:
    """The shares' quantiles with one point more that is infinitely far off; where that one decides, the furthest."""
    count = len(scores)
    sides = []
    for column, share in ((0, BELOW), (1, ABOVE)):
        ordered = np.sort(scores[:, column])
        sides.append(max(float(ordered[min(count - 1, int(np.ceil((count + 1) * (1 - share))) - 1)]), 0.0))
    return sides[0], sides[1]


def _between(mine: float, pooled: float, share: float) -> float:
    """Geometric, so that one absurd group does not blow up the others."""
    return float(np.exp(share * np.log(max(mine, 1e-3)) + (1 - share) * np.log(max(pooled, 1e-3))))


def _plain(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None
