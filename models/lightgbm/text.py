"""Checks the text of a LightGBM model before the library reads it.

LightGBM trusts its own format: a child that points back hangs every prediction, a count or an index that lies ends the
process. Here every tree must be a tree: sizes that agree, each node and leaf reached exactly once from the root, known
features, finite numbers. What follows the trees (importances, parameters) is not passed on.

Format: ``GBDT::SaveModelToString`` and ``Tree::ToString`` of LightGBM 4, versions ``v3`` and ``v4``.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_CHARACTERS = 64 * 2**20
MOST_TREES, MOST_LEAVES, MOST_FEATURES, MOST_DEPTH = 20_000, 4096, 4096, 512
_END = "\nend of trees\n"
_TAIL = "end of trees\n\npandas_categorical:null\n"
_HEAD_KEYS = frozenset(
    {
        "version",
        "num_class",
        "num_tree_per_iteration",
        "label_index",
        "max_feature_idx",
        "objective",
        "average_output",
        "feature_names",
        "monotone_constraints",
        "feature_infos",
        "tree_sizes",
    }
)
_NODE_REALS, _NODE_WHOLES = (
    ("split_gain", "threshold", "internal_value", "internal_weight"),
    (
        "split_feature",
        "decision_type",
        "left_child",
        "right_child",
        "internal_count",
    ),
)
_LEAF_REALS, _LEAF_WHOLES = ("leaf_value", "leaf_weight"), ("leaf_count",)
_ARRAYS = frozenset({*_NODE_REALS, *_NODE_WHOLES, *_LEAF_REALS, *_LEAF_WHOLES})
_OBJECTIVE = re.compile(r"[a-z][a-z0-9_:. ]{0,79}")
_DECISION_TYPES = (0, 2, 4, 6, 8, 10)
"""Numerical splits (bit 0 is off), default direction (bit 1), and how missing values are known (bits 2 and 3)."""


class TreeTextError(ValueError):
    """A text that is not a whole and sound set of trees."""


def checked_text(text: str) -> str:
    """The header and the trees of a model's text, sound, without what follows them. Raises TreeTextError."""
    if len(text) > MOST_CHARACTERS or not text.isascii():
        raise TreeTextError(f"more than {MOST_CHARACTERS} characters, or others than ASCII")
    end = text.find(_END)
    if not text.startswith("tree\n") or end < 0:
        raise TreeTextError("the text of the trees is not whole")
    header, *trees = text[: end + 1].split("\nTree=")
    features, sizes = _header(header)
    if len(sizes) != len(trees):
        raise TreeTextError(f"{len(trees)} trees, but {len(sizes)} sizes of trees")
    for number, (tree, size) in enumerate(zip(trees, sizes, strict=True)):
        # What split took away belongs to the trees; the newline before "end of trees" to the last of them.
        length = len("Tree=") + len(tree) + (number < len(trees) - 1)
        if size != length:
            raise TreeTextError(f"tree {number} has {length} characters, not {size}")
        _check_tree(number, tree, features)
    return text[: end + 1] + _TAIL


def _header(text: str) -> tuple[int, list[int]]:
    """How many features there are, and the size of every tree in characters."""
    fields = _fields(text.removeprefix("tree\n"), "the header")
    if not set(fields) <= _HEAD_KEYS:
        raise TreeTextError(f"unknown in the header: {sorted(set(fields) - _HEAD_KEYS)[0][:40]!a}")
    for key in ("num_class", "num_tree_per_iteration"):
        if fields.get(key) != "1":
            raise TreeTextError(f"{key} is {fields.get(key, 'missing')[:40]!a}; only single outputs are read")
    if not _OBJECTIVE.fullmatch(fields.get("objective", "none")):
        raise TreeTextError(f"objective is {fields['objective'][:40]!a}")
    features = int(_wholes(fields.get("max_feature_idx", ""), "max_feature_idx", 1, (0, MOST_FEATURES - 1))[0]) + 1
    for key in ("feature_names", "feature_infos"):
        if len(fields.get(key, "").split()) != features:
            raise TreeTextError(f"{key} does not list {features} features")
    sizes = fields.get("tree_sizes", "").split()
    if len(sizes) > MOST_TREES:
        raise TreeTextError(f"{len(sizes)} trees; at most {MOST_TREES} are read")
    return features, _wholes(" ".join(sizes), "tree_sizes", len(sizes), (0, MOST_CHARACTERS)).tolist()


def _fields(text: str, where: str) -> dict[str, str]:
    """Lines ``key=value``; a line without ``=`` has no value. No key twice."""
    fields: dict[str, str] = {}
    for line in text.split("\n"):
        key, _, value = line.partition("=")
        if key in fields:
            raise TreeTextError(f"{key[:40]!a} stands twice in {where}")
        if line:
            fields[key] = value
    return fields


def _check_tree(number: int, text: str, features: int) -> None:
    label, _, body = text.partition("\n")
    where = f"tree {number}"
    if label != str(number):
        raise TreeTextError(f"{where} is called {label[:40]!a}")
    fields = _fields(body, where)
    unknown = set(fields) - _ARRAYS - {"num_leaves", "num_cat", "is_linear", "shrinkage"}
    if unknown:
        raise TreeTextError(f"unknown in {where}: {min(unknown)[:40]!a}")
    if fields.get("num_cat") != "0" or fields.get("is_linear", "0") != "0":
        raise TreeTextError(f"{where}: categories and linear leaves are not read")
    leaf_count = int(_wholes(fields.get("num_leaves", ""), f"num_leaves of {where}", 1, (1, MOST_LEAVES))[0])
    _reals(fields.get("shrinkage", "1"), f"shrinkage of {where}", 1)
    _check_arrays(where, fields, leaf_count, features)


def _check_arrays(where: str, fields: Mapping[str, str], leaf_count: int, features: int) -> None:
    nodes = leaf_count - 1
    required = _ARRAYS if nodes else frozenset({"leaf_value"})
    if not required <= set(fields):
        raise TreeTextError(f"{where} lacks {sorted(required - set(fields))[0]}")
    for names, length in ((_NODE_REALS, nodes), (_LEAF_REALS, leaf_count)):
        for name in names:
            if nodes or fields.get(name, "").strip():
                # LightGBM itself writes infinite thresholds: what is missing goes one way, all that is known the other.
                _reals(fields[name], f"{name} of {where}", length, infinite=name == "threshold")
    if not nodes:
        return
    for name, length in (("leaf_count", leaf_count), ("internal_count", nodes)):
        _wholes(fields[name], f"{name} of {where}", length, (0, 2**31 - 1))
    _wholes(fields["split_feature"], f"split_feature of {where}", nodes, (0, features - 1))
    kinds = _wholes(fields["decision_type"], f"decision_type of {where}", nodes, (0, 127))
    if not np.isin(kinds, _DECISION_TYPES).all():
        raise TreeTextError(f"{where}: a split that is not numerical")
    left, right = (
        _wholes(fields[side], f"{side} of {where}", nodes, (-leaf_count, nodes - 1))
        for side in ("left_child", "right_child")
    )
    _require_tree(where, np.concatenate([left, right]), left, right)


def _require_tree(where: str, children: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]) -> None:
    """Each node but the root, and each leaf, is the child of one node, and the root reaches all of them."""
    nodes = len(left)
    inner, outer = np.sort(children[children >= 0]), np.sort(-children[children < 0] - 1)
    if not np.array_equal(inner, np.arange(1, nodes)) or not np.array_equal(outer, np.arange(nodes + 1)):
        raise TreeTextError(f"{where} is no tree: a node is nobody's child, or that of two")
    reached, depth, level = 0, 0, np.zeros(1, dtype=np.int64)
    while len(level):
        reached, depth = reached + len(level), depth + 1
        if depth > MOST_DEPTH:
            raise TreeTextError(f"{where} is deeper than {MOST_DEPTH}")
        below = np.concatenate([left[level], right[level]])
        level = below[below >= 0]
    if reached != nodes:
        raise TreeTextError(f"{where} is no tree: its nodes run in a circle")


def _wholes(text: str, where: str, length: int, bounds: tuple[int, int]) -> NDArray[np.int64]:
    tokens = text.split()
    low, high = bounds
    if len(tokens) != length or not all(len(word) <= 20 and word.removeprefix("-").isdigit() for word in tokens):
        raise TreeTextError(f"{where}: not {length} whole numbers")
    numbers = [int(word) for word in tokens]
    if not all(low <= number <= high for number in numbers):
        raise TreeTextError(f"{where}: a number outside {low} to {high}")
    return np.array(numbers, dtype=np.int64)


def _reals(text: str, where: str, length: int, *, infinite: bool = False) -> None:
    tokens: Any = text.split()
    if len(tokens) != length or any(len(word) > 40 or "_" in word for word in tokens):
        raise TreeTextError(f"{where}: not {length} numbers")
    try:
        numbers = np.array(tokens, dtype=np.float64)
    except ValueError as error:
        raise TreeTextError(f"{where}: not {length} numbers") from error
    if np.isnan(numbers).any() or not (infinite or np.isfinite(numbers).all()):
        raise TreeTextError(f"{where}: a number that is not finite")
