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
        self._numbers: dict[tuple[Any, ...], int] = {}

    def record(self, func: Any, args: Any, kwargs: Any, stream: int, module: int, operation: int) -> None:
        """One row for an operation on the GPU, which the tensors that it makes are to precede."""
        arguments = {item.name: value for item, value in zip(func._schema.arguments, args)}  # noqa: B905 (Python 3.9)
        arguments.update(kwargs)
        source, weight = arguments["input"], arguments["weight"]
        if not isinstance(source, FakeTensor) or source.fake_device.type != "cuda":
            return
        directions = _FORWARD
        if "output_mask" in arguments:
            wanted = arguments["output_mask"]
            directions = _INPUT_GRADIENT * bool(wanted[0]) + _WEIGHT_GRADIENT * bool(wanted[1])
        if directions:
            # Every algorithm that fits is tried, whatever workspace it takes.
            directions |= _SEARCHED * bool(torch.backends.cudnn.benchmark)
            self._writer.row(
                events.CONVOLUTION, self._number(source, weight, arguments), directions, stream, module, operation
            )

    def _number(self, source: Any, weight: Any, arguments: dict[str, Any]) -> int:
        key = (
            tuple(source.shape),
            tuple(weight.shape),
            *(tuple(arguments[name]) for name in _LISTS),
            bool(arguments["transposed"]),
            int(arguments["groups"]),
            source.dtype,
            _channels_last(source, weight),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers) + 1
            row = {"id": number, "input": list(key[0]), "weight": list(key[1])}
            row.update({name: list(key[2 + n]) for n, name in enumerate(_LISTS)})
            row.update(transposed=key[5], groups=key[6], dtype=str(key[7])[len("torch.") :], channels_last=key[8])
            self._writer.message({"convolution": row})
        return number


def _channels_last(*both: Any) -> bool:
    """Whether either tensor lies so, and not plainly: PyTorch then runs the whole convolution so."""
    for item in both:
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(item.dim())
        if form is not None and item.is_contiguous(memory_format=form) and not item.is_contiguous():
            return True
    return False
