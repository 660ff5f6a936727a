"""The settings of PyTorch's caching allocator, as ``PYTORCH_ALLOC_CONF`` (``PYTORCH_CUDA_ALLOC_CONF``) has them.

Names and defaults: c10/core/AllocatorConfig.h and docs.pytorch.org/docs/stable/notes/cuda.html, "Optimizing memory
usage with PYTORCH_CUDA_ALLOC_CONF".
"""

import re
from dataclasses import dataclass
from typing import Self

from kopt.core.units import MIB

NO_LIMIT = 1 << 62
LARGE_SEGMENT_BYTES = 20 * MIB
_INTERVALS = 16
"""Powers of two from 1 MiB to 64 GiB that rounding divisions can be given for."""
_LIST = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class AllocatorSettings:
    """Bytes are exact; ``roundup_divisions`` holds one division per power of two from 1 MiB to 64 GiB, 0 for none.

    ``memory_fraction`` is the share of the device a process may take; only with one is garbage collected.
    """

    max_split_bytes: int = NO_LIMIT
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    roundup_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None
    expandable_segments: bool = False
    unknown: tuple[str, ...] = ()
    """Settings that were given and do not act here."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``key:value,key:value``; whatever cannot be read is kept under ``unknown``."""
        result: dict[str, object] = {}
        unknown = []
        for key, value in _items(text):
            try:
                result.update(_read(key, value))
            except (ValueError, KeyError):
                unknown.append(f"{key}:{value}" if value else key)
        return cls(**result, unknown=tuple(unknown))  # type: ignore[arg-type]

    def divisions(self, size: int) -> int:
        """Divisions of the power of two that ``size`` falls into (AcceleratorAllocatorConfig)."""
        if not self.roundup_divisions:
            return 0
        index = size.bit_length() - 21
        return self.roundup_divisions[min(max(index, 0), len(self.roundup_divisions) - 1)]


def _items(text: str) -> list[tuple[str, str]]:
    """Keys and values; commas and colons within brackets belong to the value."""
    lists: list[str] = []

    def keep(match: re.Match[str]) -> str:
        lists.append(match[1])
        return f"\0{len(lists) - 1}"

    plain = _LIST.sub(keep, re.sub(r"\s", "", text.replace("\0", "")))
    items = []
    for part in filter(None, plain.split(",")):
        key, _, value = part.partition(":")
        items.append((key, lists[int(value[1:])] if value.startswith("\0") else value))
    return items


def _read(key: str, value: str) -> dict[str, object]:
    """The field that a setting fills. Raises KeyError or ValueError for one that does not act or cannot be read."""
    match key:
        case "max_split_size_mb":
            return {"max_split_bytes": min(max(_positive(value) * MIB, LARGE_SEGMENT_BYTES), NO_LIMIT)}
        case "max_non_split_rounding_mb":
            return {"max_non_split_rounding_bytes": min(_positive(value) * MIB, NO_LIMIT)}
        case "large_segment_size_mb":
            return {"large_segment_bytes": max(_positive(value), 2) // 2 * 2 * MIB}
        case "roundup_power2_divisions":
            return {"roundup_divisions": _divisions(value)}
        case "garbage_collection_threshold":
            return {"garbage_collection_threshold": _share(value)}
        case "per_process_memory_fraction":
            return {"memory_fraction": _share(value)}
        case "expandable_segments":
            return {"expandable_segments": {"True": True, "False": False}[value]}
    raise KeyError(key)


def _positive(value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 12:
        raise ValueError(value)
    return int(value)


def _share(value: str) -> float:
    share = float(value)
    if not 0 < share <= 1:
        raise ValueError(value)
    return share


def _divisions(value: str) -> tuple[int, ...]:
    """``8`` for all, or ``256:1,512:2,>:8`` by size in MiB, each entry from its power of two on."""
    if ":" not in value:
        return (_power(value),) * _INTERVALS
    result = [0] * _INTERVALS
    entries = [entry.partition(":") for entry in value.split(",")]
    last = 0
    for n, (bound, _, divisions) in enumerate(entries):
        if bound == ">":
            result[last + 1 :] = [_power(divisions)] * (_INTERVALS - last - 1)
            break
        index = min(_positive(bound).bit_length() - 1, _INTERVALS - 1)
        if n == 0:
            result[:index] = [_power(divisions)] * index
        result[index] = _power(divisions)
        last = index
    return tuple(result)


def _power(value: str) -> int:
    number = _positive(value)
    if number & (number - 1):
        raise ValueError(f"{value} is no power of two")
    return number
