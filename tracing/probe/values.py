"""Values of fake tensors that can be known: small integers that came from real data, and what follows from them.

Control flow of a script asks for values (``.item()``, masks, lengths). Those that were read from real data or computed
from constants are carried beside the fake tensor on the CPU; weights and what they touch have none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .storages import LiveStorages

_INTEGERS = 1 << 18
_FLOATS = 64


def worth_keeping(tensor: Any) -> bool:
    """Whether the values of so large a tensor are carried along."""
    return bool(tensor.numel() <= (_FLOATS if tensor.is_floating_point() or tensor.is_complex() else _INTEGERS))


class Values:
    """Known values as an attribute of the fake tensor, void once its storage was written with something unknown."""

    def __init__(self, storages: LiveStorages) -> None:
        self._storages = storages

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values, on the CPU; a real tensor is its own."""
        if not isinstance(tensor, FakeTensor):
            return tensor if isinstance(tensor, torch.Tensor) else None
        kept = tensor.__dict__.get("_kopt_value")
        if kept is None:
            return None
        record = self._storages.find(tensor)
        if record is None or record.version != kept[1]:
            return None
        value: torch.Tensor = kept[0]
        return value

    def keep(self, tensor: Any, value: torch.Tensor) -> None:
        """Remembers the values of ``tensor``, which must be followed already."""
        record = self._storages.find(tensor)
        if record is not None and value.shape == tensor.shape:
            tensor.__dict__["_kopt_value"] = (value.detach(), record.version)

    def forget(self, tensor: Any) -> None:
        """Something unknown was written to the tensor's storage."""
        record = self._storages.find(tensor)
        if record is not None:
            record.version += 1


_ABSORBING = {
    **dict.fromkeys(("bitwise_or", "logical_or", "__or__", "__ior__"), True),
    **dict.fromkeys(("bitwise_and", "logical_and", "__and__", "__iand__", "mul"), False),
}


def absorbed(values: Values, name: str, args: tuple[Any, ...], out: Any) -> torch.Tensor | None:
    """The result of "or", "and" and products that one side decides alone: true or anything, false and anything.

    A loop that ends at a length or when something unknown is true ends at the length.
    """
    base = name.removeprefix("aten::")
    value = _ABSORBING.get(base, _ABSORBING.get(base.removesuffix("_")))
    if value is None or not isinstance(out, FakeTensor) or out.is_floating_point() or not worth_keeping(out):
        return None
    for side in args[:2]:
        deciding = values.of(side) if isinstance(side, torch.Tensor) and worth_keeping(side) else None
        if deciding is not None and bool(deciding.all() if value else not deciding.any()):
            return torch.full(out.shape, value, dtype=out.dtype)
    return None


def guess(tensor: FakeTensor) -> bool | int | float:
    """A value to go on with where none is known: checks pass, numbers are one."""
    hint = tensor.__dict__.get("_kopt_guess")
    if tensor.dtype is torch.bool:
        return bool(hint)
    return 1.0 if tensor.is_floating_point() else 1


def hint(name: str, inputs: list[Any], args: tuple[Any, ...], outputs: Any) -> None:
    """Marks truth values of checks for NaN and infinity, and keeps the share of a mask that is set."""
    if not isinstance(outputs, FakeTensor):
        return
    guess = None
    if outputs.dtype is torch.bool:
        guess = _check(name, inputs, args)
    if guess is not None:
        outputs.__dict__["_kopt_guess"] = guess
    density = next((item.__dict__["_kopt_density"] for item in inputs if "_kopt_density" in item.__dict__), None)
    if density is not None and (outputs.numel() <= inputs[0].numel() or name in ("aten::_to_copy", "aten::eq")):
        outputs.__dict__["_kopt_density"] = density


def _check(name: str, inputs: list[Any], args: tuple[Any, ...]) -> bool | None:
    same = len(args) > 1 and args[0] is args[1]
    infinite = len(args) > 1 and args[1] in (float("inf"), float("-inf")) if not _is_tensor(args, 1) else False
    if name in ("aten::eq", "aten::ne") and (same or infinite):
        return (name == "aten::eq") == same
    if name in ("aten::isnan", "aten::isinf"):
        return False
    if name in ("aten::eq", "aten::ne") and _is_other_number(inputs, args):
        return name == "aten::ne"
    if name in ("aten::logical_not", "aten::bitwise_not"):
        before = inputs[0].__dict__.get("_kopt_guess")
        return None if before is None else not before
    inherited = next((item.__dict__["_kopt_guess"] for item in inputs if "_kopt_guess" in item.__dict__), None)
    return True if inherited is None and name in ("aten::all", "aten::_is_all_true") else inherited


def _is_other_number(inputs: list[Any], args: tuple[Any, ...]) -> bool:
    """Unknown integers are taken for ones: the end of a text, say, has another number and has not come yet."""
    number = args[1] if len(args) > 1 else None
    if not isinstance(number, int) or number in (0, 1):
        return False
    return not (inputs[0].is_floating_point() or inputs[0].is_complex() or inputs[0].dtype is torch.bool)


def _is_tensor(args: tuple[Any, ...], index: int) -> bool:
    return len(args) > index and isinstance(args[index], torch.Tensor)
