"""Convolutions as their library sees them: sizes decide the algorithm, and with it the workspace that it asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import stream as events
from .stream import EventWriter

_FORWARD, _INPUT_GRADIENT, _WEIGHT_GRADIENT, _SEARCHED = 1, 2, 4, 8
_LISTS = ("stride", "padding", "dilation")


class Convolutions:
    """Tells each shape once and each use of it in a row: many layers are alike."""

    NAMES = ("aten::convolution", "aten::convolution_backward")

    def __init__(self, writer: EventWriter) -> None:
        self._writer = writer
        self._known: dict[tuple[Any, ...], int] = {}

    def tell(self, func: Any, args: Any, kwargs: Any, stream: int, module: int, operation: int) -> None:
        """One row for an operation on the GPU, which the tensors that it makes are to precede."""
        given = {one.name: value for one, value in zip(func._schema.arguments, args)}  # noqa: B905 (Python 3.9)
        given.update(kwargs)
        source, weight = given["input"], given["weight"]
        if not isinstance(source, FakeTensor) or source.fake_device.type != "cuda":
            return
        passes = _FORWARD
        if "output_mask" in given:
            wanted = given["output_mask"]
            passes = _INPUT_GRADIENT * bool(wanted[0]) + _WEIGHT_GRADIENT * bool(wanted[1])
        if passes:
            # Every algorithm that fits is tried, whatever workspace it takes.
            passes |= _SEARCHED * bool(torch.backends.cudnn.benchmark)
            self._writer.row(events.CONVOLUTION, self._number(source, weight, given), passes, stream, module, operation)

    def _number(self, source: Any, weight: Any, given: dict[str, Any]) -> int:
        key = (
            tuple(source.shape), tuple(weight.shape), *(tuple(given[name]) for name in _LISTS),
            bool(given["transposed"]), int(given["groups"]), source.dtype, _channels_last(source, weight),
        )  # fmt: skip
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self._known) + 1
            told = {"id": known, "input": list(key[0]), "weight": list(key[1])}
            told.update({name: list(key[2 + n]) for n, name in enumerate(_LISTS)})
            told.update(transposed=key[5], groups=key[6], dtype=str(key[7])[len("torch.") :], channels_last=key[8])
            self._writer.message({"convolution": told})
        return known


def _channels_last(*both: Any) -> bool:
    """Whether either tensor lies so, and not plainly: PyTorch then runs the whole convolution so."""
    for one in both:
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(one.dim())
        if form is not None and one.is_contiguous(memory_format=form) and not one.is_contiguous():
            return True
    return False
