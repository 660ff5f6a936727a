"""Small LightGBM models evaluated with numpy: neither LightGBM nor SciPy is needed, nor the second to import them.

For a few rows and small trees. The answers are LightGBM's to the last bit: the same comparisons, summed in the same
order (``Tree::NumericalDecision`` and ``GBDT::PredictRaw`` of LightGBM 4).
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kopt.models.registry.lightgbm_text import checked_text

Array = NDArray[np.float64]
_DEFAULT_LEFT, _ZERO_IS_MISSING, _NAN_IS_MISSING = 2, 4, 8
_ZERO = 1e-35
"""Up to here LightGBM takes a number to be zero."""


@dataclass(frozen=True)
class _Tree:
    """A node's children are nodes from 0 on, or leaves as -1 - leaf."""

    features: NDArray[np.int64]
    thresholds: Array
    kinds: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    leaf_values: Array

    def values(self, inputs: Array) -> Array:
        """The leaf of each row (n,)."""
        rows = np.arange(len(inputs))
        nodes = np.zeros(len(inputs), dtype=np.int64) if len(self.features) else np.full(len(inputs), -1)
        while (inner := nodes >= 0).any():
            at = nodes[inner]
            nodes[inner] = np.where(self._turns_left(at, inputs[rows[inner], self.features[at]]), *self._children(at))
        result: Array = self.leaf_values[-1 - nodes]
        return result

    def _children(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.left[nodes], self.right[nodes]

    def _turns_left(self, nodes: NDArray[np.int64], values: Array) -> NDArray[np.bool_]:
        kinds = self.kinds[nodes]
        nan_is_missing = kinds & _NAN_IS_MISSING != 0
        values = np.where(np.isnan(values) & ~nan_is_missing, 0.0, values)
        is_missing = np.isnan(values) | ((kinds & _ZERO_IS_MISSING != 0) & (np.abs(values) <= _ZERO))
        result: NDArray[np.bool_] = np.where(
            is_missing, kinds & _DEFAULT_LEFT != 0, values <= self.thresholds[nodes]
        ).astype(bool)
        return result


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
        result = np.zeros(len(inputs))
        for tree in self._trees:
            result += tree.values(inputs)
        return result

    def contributions(self, inputs: Array) -> Array:
        """What each input adds to the value of its row (n, features), by SHAP. Needs LightGBM."""
        import lightgbm

        booster = lightgbm.Booster(model_str=checked_text(self.text))
        result: Array = np.asarray(booster.predict(inputs, pred_contrib=True, num_threads=1))[:, :-1]
        return result

    @cached_property
    def _trees(self) -> tuple[_Tree, ...]:
        _, *blocks = checked_text(self.text).partition("\nend of trees\n")[0].split("\nTree=")
        return tuple(_tree(dict(line.split("=", 1) for line in block.split("\n") if "=" in line)) for block in blocks)


def _tree(fields: dict[str, str]) -> _Tree:
    def wholes(name: str) -> NDArray[np.int64]:
        return np.array(fields.get(name, "").split(), dtype=np.int64)

    return _Tree(
        wholes("split_feature"),
        np.array(fields.get("threshold", "").split(), dtype=np.float64),
        wholes("decision_type"),
        wholes("left_child"),
        wholes("right_child"),
        np.array(fields["leaf_value"].split(), dtype=np.float64),
    )
