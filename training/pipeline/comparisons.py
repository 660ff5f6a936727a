"""A challenger beside the champion, slice by slice, for predictors whose errors are of things and have no horizon."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kopt.training.pipeline.protocols import Comparison, GateDecision, GateRules
from kopt.training.pipeline.slices import ALL

_WORST = 0.1
"""The champion's error counts as this share of the challenger's at least, so that no change is below -10."""


@dataclass(frozen=True)
class PairedErrors:
    """Errors of both models for one thing: by metric the champion's and the challenger's, smaller is better.

    ``slices`` are those that it counts in besides ``ALL``; things of one ``group`` are drawn together.
    """

    slices: tuple[str, ...]
    group: str
    errors: Mapping[str, tuple[float, float]]


def with_comparisons(decision: GateDecision, rows: Sequence[PairedErrors], rules: GateRules) -> GateDecision:
    """The decision with what it is about in each slice that has two things or more."""
    slices = (ALL, *sorted({label for row in rows for label in row.slices} - {ALL}))
    compared = []
    for label in slices:
        members = [row for row in rows if label == ALL or label in row.slices]
        if len(members) > 1:
            compared += _of_slice(label, members, rules, rules.level / len(slices))
    return replace(decision, comparisons=tuple(compared))


def _of_slice(label: str, rows: Sequence[PairedErrors], rules: GateRules, level: float) -> list[Comparison]:
    groups, index = np.unique([row.group for row in rows], return_inverse=True)
    rng = np.random.default_rng([rules.seed, zlib.crc32(label.encode())])
    drawn = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), size=rules.resamples)
    result = []
    for metric in rows[0].errors:
        both = np.array([row.errors[metric] for row in rows], dtype=float)
        sums = np.zeros((len(groups), 2))
        np.add.at(sums, index, both)
        champion, challenger = (float(mean) for mean in both.mean(axis=0))
        changes = _changes(drawn @ sums)
        low, high = (float(np.quantile(changes, at)) for at in (level / 2, 1 - level / 2))
        whole = float(_changes(sums.sum(axis=0, keepdims=True))[0])
        result.append(Comparison(label, 0, metric, champion, challenger, whole, low, high, len(rows)))
    return result


def _changes(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the challenger's errors are less, as a share of the champion's; 0 where neither errs."""
    champion, challenger = totals[:, 0], totals[:, 1]
    result: NDArray[np.float64] = (champion - challenger) / np.maximum(np.maximum(champion, _WORST * challenger), 1e-12)
    return result
