"""Methods of fake tensors that scripts and libraries expect to work: numpy, addresses, swapping, pinning."""

from __future__ import annotations

import copyreg
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .tracer import Tracer

# Addresses as an allocator might give them: aligned, apart, never zero.
_BASE_ADDRESS = 1 << 44


def install(tracer: Tracer) -> None:
    """Patches the classes; to be called once, before the script."""
    storages = tracer.storages

    def storage_address(storage: Any) -> int:
        cdata: int = storage._cdata
        return cdata

    def address(tensor: Any) -> int:
        offset: int = tensor.storage_offset() * tensor.element_size()
        return _BASE_ADDRESS + storage_address(tensor.untyped_storage()) + offset

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        if tensor.fake_device.type == "cuda" and not force:
            raise TypeError(
                f"can't convert {tensor.fake_device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return tracer.materialise(tensor.detach()).numpy()

    fake: Any = FakeTensor

    def formatted(tensor: Any, specification: str) -> str:
        if tensor.dim() == 0:
            return format(tensor.item(), specification)
        return object.__format__(tensor, specification)

    def deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
        if id(tensor) in memo:
            return memo[id(tensor)]
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
            )
        with torch.no_grad():
            made = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        if getattr(tensor, "_is_param", False):
            made._is_param = True
        if tensor.grad is not None:
            made.grad = deep_copy(tensor.grad, memo)
        memo[id(tensor)] = made
        return made

    fake.__deepcopy__ = deep_copy
    fake.data_ptr = address
    fake.__format__ = formatted
    fake.numpy = numpy
    fake.__array__ = lambda tensor, dtype=None, copy=None: numpy(tensor)
    fake.tolist = lambda tensor: tracer.materialise(tensor.detach()).tolist()
    fake.pin_memory = lambda tensor, device=None: tensor
    fake.is_shared = lambda tensor: False
    fake.share_memory_ = lambda tensor: tensor
    fake.__reduce_ex__ = lambda tensor, protocol: (_rebuilt, (tuple(tensor.shape), tensor.dtype))
    plain: Any = torch.Tensor
    plain.pin_memory = lambda tensor, device=None: tensor
    plain.is_pinned = lambda tensor, device=None: False

    _follow_data(plain)
    storage: Any = torch.UntypedStorage
    original_address = storage.data_ptr
    original_resize = storage.resize_

    def resize(this: Any, size: int) -> Any:
        result = original_resize(this, size)
        storages.resized(this)
        return result

    storage.data_ptr = lambda this: storage_address(this) if this.device.type == "meta" else original_address(this)
    storage.resize_ = resize
    torch.utils.swap_tensors = swap
    torch.__future__.set_swap_module_params_on_conversion(True)


def _follow_data(plain: Any) -> None:
    """``tensor.data = other`` where only one is fake, or on different devices: the class has to change with it."""
    original = plain.data

    def assign(tensor: Any, value: Any) -> None:
        fakes = isinstance(tensor, FakeTensor), isinstance(value, FakeTensor)
        if fakes[0] == fakes[1] and not (fakes[0] and tensor.fake_device != value.fake_device):
            original.__set__(tensor, value)
            return
        gradient, wanted = tensor.grad, tensor.requires_grad
        with torch.no_grad():
            made = value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=wanted)
        swap(tensor, made)
        if gradient is not None and gradient.device == tensor.device:
            tensor.grad = gradient

    plain.data = property(lambda tensor: original.__get__(tensor), assign)


def _rebuilt(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A fake tensor that was pickled comes back as zeros."""
    return torch.zeros(shape, dtype=dtype)


def swap(first: Any, second: Any) -> None:
    """``torch.utils.swap_tensors`` without its veto of weak references, which the tracing itself holds."""
    first_class, second_class = first.__class__, second.__class__
    first_kept, second_kept = first.__dict__.copy(), second.__dict__.copy()
    torch._C._swap_tensor_impl(first, second)
    first.__class__, second.__class__ = second_class, first_class
    for tensor, kept in ((first, second_kept), (second, first_kept)):
        tensor.__dict__.clear()
        tensor.__dict__.update(kept)
    # What a class keeps outside of the dictionary: the local part of a tensor that is split over ranks.
    for slot in set(copyreg._slotnames(first_class)) & set(copyreg._slotnames(second_class)):  # type: ignore[attr-defined]
        if hasattr(first, slot) and hasattr(second, slot):
            own, other = getattr(first, slot), getattr(second, slot)
            setattr(first, slot, other)
            setattr(second, slot, own)
