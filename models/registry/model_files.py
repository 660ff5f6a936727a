"""Reads the files of a saved model that are not trees: JSON and tensors, within bounds and in words where they lie."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_JSON_BYTES = 16 * 2**20
MOST_DEPTH = 32
MOST_TENSORS = 64
_KINDS = frozenset({"float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"})
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def read_json(path: Path) -> Any:
    """The document in a file. Raises ValueError with the file's name for one that is absent, too large or deep, no
    JSON, or holds numbers that are not finite; never RecursionError."""
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ValueError(f"larger than {MOST_JSON_BYTES // 2**20} MiB")
        text = path.read_text(encoding="utf-8")
        if _depth(text) > MOST_DEPTH:
            raise ValueError(f"nested deeper than {MOST_DEPTH}")
        return json.loads(text, parse_constant=_not_finite, parse_float=_finite)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file. Raises ValueError with the file's name for a file whose header lies, arrays of
    other types than numbers, and numbers that are not finite."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, NDArray[Any]] = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{path}: not a file of tensors ({error})") from error
    if len(arrays) > MOST_TENSORS:
        raise ValueError(f"{path}: {len(arrays)} tensors; at most {MOST_TENSORS} are read")
    for name, array in arrays.items():
        if array.dtype.name not in _KINDS or np.isnan(array).any():
            raise ValueError(f"{path}: {name[:64]!a} is of type {array.dtype.name} or holds what is no number")
    return arrays


def _depth(text: str) -> int:
    deepest = depth = 0
    for match in _NESTING.finditer(text):
        first = match[0][0]
        depth += (first in "[{") - (first in "]}")
        deepest = max(deepest, depth)
        if deepest > MOST_DEPTH:
            break
    return deepest


def _not_finite(name: str) -> float:
    raise ValueError(f"{name} is no number that a model may hold")


def _finite(text: str) -> float:
    number = float(text)
    if not np.isfinite(number):
        raise ValueError(f"{text[:40]} is no number that a model may hold")
    return number
