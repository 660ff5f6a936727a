"""Remembers what an operation makes of inputs of these shapes, so that the fake kernels run once for each.

A training loop asks the same few hundred questions thousands of times. Only plain results are kept: new strided
tensors, views of an input, or an input itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_INPUT, _NEW, _NONE = range(3)


class Recipes:
    """``key`` of a call, then ``make`` from a kept recipe or ``keep`` one."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    def key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Everything that the result depends on; None where that is more than shapes and plain values."""
        parts: list[Any] = [func, torch.is_inference_mode_enabled()]
        if not _describe(args, parts):
            return None
        if kwargs:
            for name in sorted(kwargs):
                parts.append(name)
                if not _describe((kwargs[name],), parts):
                    return None
        return tuple(parts)

    def make(self, key: Any, inputs: list[Any]) -> Any:
        """The result for inputs in the order of the arguments; NotImplemented where no recipe is kept."""
        recipe = self._kept.get(key)
        if recipe is None:
            return NotImplemented
        kind, parts = recipe
        results = [_made(part, inputs) for part in parts]
        return results[0] if kind is None else kind(results)

    def keep(self, key: Any, func: Any, inputs: list[Any], out: Any) -> None:
        """Keeps how ``out`` came of ``inputs``, if it is plain."""
        if torch.Tag.inplace_view in func.tags or (func._schema.is_mutable and isinstance(out, (list, tuple))):
            return
        storages: dict[int, int] = {}
        for index, item in enumerate(inputs):
            storages.setdefault(item.untyped_storage()._cdata, index)
        kind = type(out) if isinstance(out, (list, tuple)) else None
        parts = [_part(item, inputs, storages) for item in (out if kind is not None else (out,))]
        if kind in (None, list, tuple) and None not in parts:
            self._kept[key] = (kind, parts)


def _describe(values: Any, parts: list[Any]) -> bool:
    for value in values:
        if isinstance(value, FakeTensor):
            if value.layout is not torch.strided or value.is_conj() or value.is_neg() or value.constant is not None:
                return False
            parts += (value.shape, value.stride(), value.dtype, value.fake_device, value.storage_offset())
        elif isinstance(value, _PLAIN):
            # 1 and 1.0 and True are one key to a dictionary, but not one result.
            parts += (type(value), value)
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            if not _describe(value, parts):
                return False
        else:
            return False
    return True


def _part(item: Any, inputs: list[Any], storages: dict[int, int]) -> Any:
    if item is None:
        return (_NONE, 0)
    if not isinstance(item, FakeTensor) or item.layout is not torch.strided or item.constant is not None:
        return None
    if item.is_conj() or item.is_neg():
        return None
    for index, candidate in enumerate(inputs):
        if candidate is item:
            return (_INPUT, index)
    address = item.untyped_storage()._cdata
    base = storages.get(address)
    if base is None:
        # Another result with the same storage would be a view of this one, which no recipe says.
        storages[address] = -1
    elif base < 0:
        return None
    clean = {name: value for name, value in item.__dict__.items() if not name.startswith("_kopt")}
    shape, stride, offset = tuple(item.shape), item.stride(), item.storage_offset()
    if base is None and (offset or item.untyped_storage().nbytes() != _bytes(shape, stride, item.element_size())):
        return None
    return (_NEW, base, shape, stride, offset, item.dtype, item.fake_device, clean)


def _bytes(shape: tuple[int, ...], stride: tuple[int, ...], element: int) -> int:
    if 0 in shape:
        return 0
    return element * (1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)))


def _made(part: Any, inputs: list[Any]) -> Any:
    if part[0] == _INPUT:
        return inputs[part[1]]
    if part[0] == _NONE:
        return None
    _, base, shape, stride, offset, dtype, device, clean = part
    if base is None:
        meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    else:
        meta = torch.empty((), dtype=dtype, device="meta")
        meta.set_(inputs[base].untyped_storage(), offset, shape, stride)
    make: Any = torch.Tensor._make_subclass
    made = make(FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device)
    made.__dict__.update(clean)
    return made
