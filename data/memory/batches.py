"""What a model's figures at several batch sizes say about each other: which of them are no need of memory.

A run that stopped early shows the same bytes at every batch size, less than its tensors. A run that searches for the
fastest algorithm of a convolution takes what is free for a moment, gigabytes on an empty card; a sampled peak catches
that now and then. Where a larger batch of the same model ran in less, these bytes were taken and not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kopt.core.units import GIB, Bytes

_LEAST_BESIDE_TENSORS = Bytes(5 * GIB // 4)
"""Driver, libraries and allocator; of 4,167 runs on an A100 199 in 200 show 1.4 GiB and more, the others crashed."""
_REPEATS = 1.02
"""Repeated runs differ by this factor."""

STOPPED = "it shows less than its own tensors, or the same as another batch size: it stopped early"
UNNEEDED = "a larger batch of the same model ran in less: memory was taken that was not needed"


@dataclass(frozen=True)
class Figure:
    """What a process was measured to use, and the bytes of its tensors alone."""

    measured: Bytes
    tensors: Bytes


def doubts(figures: Mapping[int, Figure]) -> dict[int, str]:
    """Batch size → why its figure is no need, of those for which that shows. All are of one model on one GPU."""
    all_measured = [figure.measured for figure in figures.values()]
    result = {
        batch: STOPPED
        for batch, figure in figures.items()
        if figure.measured < figure.tensors + _LEAST_BESIDE_TENSORS or all_measured.count(figure.measured) > 1
    }
    ran = {batch: figure.measured for batch, figure in figures.items() if batch not in result}
    for batch, measured in ran.items():
        if any(other > batch and measured > _REPEATS * less for other, less in ran.items()):
            result[batch] = UNNEEDED
    return result
