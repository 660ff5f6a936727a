"""How fast a job is at a width, between those at which that is known."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping


def speeds_along(
    curve: Mapping[int, float], gpus: int, own: Mapping[int, float], widths: Iterable[int]
) -> dict[int, float]:
    """``own`` speeds by width, and at ``widths`` without one those along a ``curve`` by number of GPUs, which may be in
    another unit; between its points as a power of the number of GPUs. A curve that shares no width with what is known
    tells nothing, as its unit is not known."""
    known = {count: value for count, value in curve.items() if count > 0 and value > 0 and math.isfinite(value)}
    shared = [(width, value) for width in own if (value := _at(known, width * gpus)) is not None]
    if not shared:
        return dict(own)
    factor = math.exp(sum(math.log(own[width]) - math.log(value) for width, value in shared) / len(shared))
    along = {width: value * factor for width in widths if (value := _at(known, width * gpus)) is not None}
    return along | dict(own)


def _at(curve: Mapping[int, float], gpus: int) -> float | None:
    """None outside of its points."""
    counts = sorted(curve)
    if gpus in curve:
        return curve[gpus]
    index = bisect_left(counts, gpus)
    if not 0 < index < len(counts):
        return None
    left, right = counts[index - 1], counts[index]
    share = math.log(gpus / left) / math.log(right / left)
    return math.exp((1 - share) * math.log(curve[left]) + share * math.log(curve[right]))
