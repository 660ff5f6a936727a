"""Small LightGBM models evaluated with numpy: neither LightGBM nor SciPy is needed, nor the second to import them.

For a few rows and small trees. The answers are LightGBM's to the last bit: the same comparisons, summed in the same
order (``Tree::NumericalDecision`` and ``GBDT::PredictRaw`` of LightGBM 4).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kopt.models.lightgbm.text import checked_text

Array = NDArray[np.float64]
_DEFAULT_LEFT, _ZERO_IS_MISSING, _NAN_IS_MISSING = 2, 4, 8
_ZERO = 1e-35
"""Up to here LightGBM takes a number to be zero."""
_ROWS = 64
"""That are answered together."""


@dataclass(frozen=True)
class _Forest:
    """The nodes of all trees in one row. A child is a node from 0 on, or a leaf as -1 - leaf; so is a root."""

    roots: NDArray[np.int64]
    features: NDArray[np.int64]
    thresholds: Array
    kinds: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    leaf_values: Array

    def values(self, inputs: Array) -> Array:
        """The leaf of each row in each tree (trees, n). All trees go down together, a level at a time, for as many rows
        as stay in a processor's cache."""
        result = np.empty((len(self.roots), len(inputs)))
        for first in range(0, len(inputs), _ROWS):
            part = inputs[first : first + _ROWS]
            result[:, first : first + _ROWS] = self._of_rows(part)
        return result

    def _of_rows(self, rows: Array) -> Array:
        """The same for few rows (trees, n). What is missing is decided before, once for each row: a node compares the
        variant of its input that says where a missing one goes."""
        variants, thresholds, below = self._steps
        is_nan = np.isnan(rows)
        numbers = np.where(is_nan, 0.0, rows)
        is_zero = np.abs(numbers) <= _ZERO
        # In the order of the numbers in ``_steps``. A NaN is at no threshold, and so goes right.
        inputs = np.stack(
            [numbers, *(np.where(absent, to, numbers) for absent in (is_zero, is_nan) for to in (-np.inf, np.nan))],
            axis=-1,
        ).ravel()
        count = len(rows)
        result = np.empty(len(self.roots) * count)
        cells, nodes = np.arange(len(result)), np.repeat(self.roots, count)
        while True:
            ended = nodes < 0
            result[cells[ended]] = self.leaf_values[-1 - nodes[ended]]
            if ended.all():
                return result.reshape(-1, count)
            cells, nodes = cells[~ended], nodes[~ended]
            at = variants.take(nodes)
            if count > 1:
                at += cells % count * (len(inputs) // count)
            nodes = below.take(2 * nodes + (inputs.take(at) <= thresholds.take(nodes)))

    @cached_property
    def _steps(self) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
        """Of each node: the variant of its input, its threshold, and at 2 n what is right of it, at 2 n + 1 left."""
        to = np.where(self.kinds & _DEFAULT_LEFT != 0, 0, 1)
        variant = np.where(self.kinds & _NAN_IS_MISSING != 0, 3 + to, 0)
        variant = np.where(self.kinds & _ZERO_IS_MISSING != 0, 1 + to, variant)
        return 5 * self.features + variant, self.thresholds, np.column_stack([self.right, self.left]).ravel()


@dataclass(frozen=True)
class Trees:
    """A booster with one output, as its text. Raises TreeTextError for a text that is not whole and sound."""

    text: str

    def __post_init__(self) -> None:
        checked_text(self.text)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises ValueError with the file's name."""
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: no trees can be read ({error})") from error

    def predict(self, inputs: Array) -> Array:
        """One value for each row (n,) of inputs (n, features)."""
        # Cumulative, as sums of numpy are not taken in the order of the trees.
        result: Array = np.cumsum(self._forest.values(inputs), axis=0)[-1]
        return result

    def contributions(self, inputs: Array) -> Array:
        """What each input adds to the value of its row (n, features), by SHAP. Needs LightGBM."""
        import lightgbm

        booster = lightgbm.Booster(model_str=checked_text(self.text))
        result: Array = np.asarray(booster.predict(inputs, pred_contrib=True, num_threads=1))[:, :-1]
        return result

    @cached_property
    def _forest(self) -> _Forest:
        _, *blocks = checked_text(self.text).partition("\nend of trees\n")[0].split("\nTree=")
        return _joined([dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in blocks])


class TreeGroup:
    """Several boosters of the same inputs, gone down together: for one row that takes little longer than one of them.
    The answers are those of each by itself."""

    def __init__(self, boosters: Sequence[Trees]) -> None:
        forests = [booster._forest for booster in boosters]
        self._ends = np.cumsum([len(forest.roots) for forest in forests])
        nodes, leaves = (
            np.cumsum([0, *sizes])[:-1]
            for sizes in ([len(forest.features) for forest in forests], [len(forest.leaf_values) for forest in forests])
        )

        def moved(name: str) -> NDArray[np.int64]:
            parts = [getattr(forest, name) for forest in forests]
            return np.concatenate(
                [
                    np.where(part >= 0, part + node, part - leaf)
                    for part, node, leaf in zip(parts, nodes, leaves, strict=True)
                ]
            )

        self._forest = _Forest(
            moved("roots"),
            np.concatenate([forest.features for forest in forests]),
            np.concatenate([forest.thresholds for forest in forests]),
            np.concatenate([forest.kinds for forest in forests]),
            moved("left"),
            moved("right"),
            np.concatenate([forest.leaf_values for forest in forests]),
        )

    def predict(self, inputs: Array) -> Array:
        """A value of each booster for each row (boosters, n) of inputs (n, features)."""
        parts = np.split(self._forest.values(inputs), self._ends[:-1])
        # In the order of the trees, as in ``Trees.predict``.
        result: Array = np.array([np.cumsum(part, axis=0)[-1] for part in parts])
        return result


def _joined(trees: Sequence[Mapping[str, str]]) -> _Forest:
    """The fields of each tree's text as one forest: children of later trees are counted on."""

    def column(name: str, kind: type) -> list[NDArray[Any]]:
        return [np.array(fields.get(name, "").split(), dtype=kind) for fields in trees]

    features, leaf_values = column("split_feature", np.int64), column("leaf_value", np.float64)
    nodes, leaves = (np.cumsum([0, *(len(part) for part in parts)])[:-1] for parts in (features, leaf_values))
    left, right = (
        [
            np.where(children >= 0, children + node, children - leaf)
            for children, node, leaf in zip(column(name, np.int64), nodes, leaves, strict=True)
        ]
        for name in ("left_child", "right_child")
    )
    return _Forest(
        np.array([node if len(part) else -1 - leaf for part, node, leaf in zip(features, nodes, leaves, strict=True)]),
        np.concatenate(features),
        np.concatenate(column("threshold", np.float64)),
        np.concatenate(column("decision_type", np.int64)),
        np.concatenate(left),
        np.concatenate(right),
        np.concatenate(leaf_values),
    )
