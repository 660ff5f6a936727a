"""Operations that need a word of their own: data-dependent shapes, copies between devices, optimizers' list kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedOperatorException

from . import sparse
from .tracer import Handler, Tracer
from .values import guess, worth_keeping

aten = torch.ops.aten
# Larger copies to the host stay fake: they are not printed.
_READABLE = 1 << 20


def handlers() -> dict[str, Handler]:
    """By the operator's name; those that end early stand for all that begin so and are not named."""
    return {
        "aten::_foreach_": _foreach,
        "c10d::": _collective,
        "aten::_local_scalar_dense": _item,
        "aten::item": _item,
        "aten::equal": _equal,
        "aten::is_nonzero": _item,
        "aten::_to_copy": _to_copy,
        "aten::copy_": _copy,
        "aten::nonzero": _nonzero,
        "aten::masked_select": _masked_select,
        "aten::index": _index,
        "aten::index_put_": _index_put,
        "aten::index_put": _index_put,
        "aten::_index_put_impl_": _index_put,
        "aten::_unique2": _unique,
        "aten::unique_consecutive": _unique,
        "aten::unique_dim": _unique_dim,
        "aten::bincount": _bincount,
        "aten::repeat_interleave.Tensor": _repeat_interleave,
        "aten::scatter_": _scatter,
        "aten::record_stream": _nothing,
        "aten::_assert_async": _nothing,
        "aten::_amp_foreach_non_finite_check_and_unscale_": _nothing,
        "aten::_amp_update_scale_": _first,
        "aten::_fused_adam_": _fused,
        "aten::_fused_adamw_": _fused,
        "aten::_fused_sgd_": _fused,
        "aten::_fused_adagrad_": _fused,
        "aten::silu_backward": _like_first,
        "aten::mish_backward": _like_first,
        "aten::native_channel_shuffle": _contiguous_first,
        "aten::_pin_memory": _first,
        "aten::is_pinned": lambda *_: False,
        "torchvision::nms": _nms,
    }


def _item(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    value = tracer.values.of(args[0])
    if value is not None:
        return value.item()
    tracer.writer.assumption("numbers read back from the GPU that depend on weights were taken as 1, checks as passed")
    return guess(args[0])


def _equal(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> bool:
    first, second = tracer.values.of(args[0]), tracer.values.of(args[1])
    if first is not None and second is not None:
        return torch.equal(first, second)
    return bool(args[0].shape == args[1].shape)


def _to_copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source = args[0]
    if source.layout is not torch.strided:
        return sparse.to_copy(tracer, func, args, kwargs)
    target = kwargs.get("device")
    target = torch.device(target) if target is not None else source.device
    dtype = kwargs.get("dtype") or source.dtype
    readable = tracer.values.of(source) is not None or source.numel() <= _READABLE
    if readable and target.type == "cpu" and isinstance(source, FakeTensor) and source.fake_device.type == "cuda":
        return tracer.materialise(source).to(dtype)
    layout = kwargs.get("memory_format")
    with tracer.fake_mode:
        if target.type == "cuda" and target.index is None:
            target = torch.device("cuda", torch.cuda.current_device())
        if layout in (None, torch.preserve_format):
            out = torch.empty_strided(source.shape, _dense_strides(source), dtype=dtype, device=target)
        else:
            layout = torch.contiguous_format if layout in (None, torch.preserve_format) else layout
            out = torch.empty(source.shape, dtype=dtype, device=target, memory_format=layout)
    value = tracer.values.of(source)
    tracer.follow(out)
    if value is not None and worth_keeping(out):
        tracer.values.keep(out, value.to(dtype, copy=True))
    for name in ("_kopt_guess", "_kopt_density"):
        if name in source.__dict__:
            out.__dict__[name] = source.__dict__[name]
    return out


def _dense_strides(tensor: Any) -> tuple[int, ...]:
    """The strides of a copy that preserves the format: its own where it fills its memory, else by their order."""
    order = sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim if tensor.size(dim) == 1 else dim))
    if any(tensor.stride(dim) == 0 and tensor.size(dim) > 1 for dim in order):
        order = list(reversed(range(tensor.dim())))
    strides = [0] * tensor.dim()
    expected = 1
    for dim in order if tensor.dim() else ():
        strides[dim] = expected
        expected *= max(1, tensor.size(dim))
    contiguous: tuple[int, ...] = tuple(tensor.stride()) if tensor.is_contiguous() else tuple(strides)
    return contiguous


def _copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, FakeTensor):
        return target.copy_(tracer.materialise(source))
    tracer.follow(target)
    value, before = tracer.values.of(source), tracer.values.of(target)
    if value is not None and worth_keeping(target):
        if before is not None:
            before.copy_(value)
        else:
            record = tracer.storages.find(target)
            whole = record is not None and target.untyped_storage().nbytes() == target.numel() * target.element_size()
            if whole:
                tracer.values.keep(target, value.to(target.dtype).expand(target.shape).clone())
    else:
        tracer.values.forget(target)
    return target


def _count(tracer: Tracer, mask: Any) -> int:
    """How many elements of a mask count as set: the share where it is known, else all."""
    density = mask.__dict__.get("_kopt_density") if isinstance(mask, FakeTensor) else None
    if density is None:
        tracer.writer.assumption("masks that depend on weights were taken to select every element")
        return int(mask.numel())
    tracer.writer.assumption("one-hot masks were taken to select equal shares")
    return math.ceil(int(mask.numel()) * float(density))


def _nonzero(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    mask = args[0]
    value = tracer.values.of(mask)
    if value is None:
        count = _count(tracer, mask)
        small = mask.numel() <= 1 << 16
        real = torch.ones(mask.shape, dtype=torch.bool).nonzero()[:count].clone() if small else None
        shape: tuple[int, ...] = (count, mask.dim())
    else:
        real = value.nonzero()
        shape = tuple(real.shape)
    out = tracer.empty(shape, torch.int64, mask.device)
    tracer.follow(out)
    if real is not None and worth_keeping(out):
        tracer.values.keep(out, real)
    return out


def _masked_select(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    source, mask = args[0], args[1]
    shape = torch.broadcast_shapes(source.shape, mask.shape)  # type: ignore[no-untyped-call]
    value = tracer.values.of(mask)
    if value is not None:
        count = int(value.expand(shape).sum())
    else:
        count = _count(tracer, mask) * (math.prod(shape) // max(1, mask.numel()))
    return tracer.empty((count,), source.dtype, source.device)


def _expanded(tracer: Tracer, indices: Any) -> list[Any]:
    """Indices with masks replaced by the positions they select."""
    out: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            if isinstance(index, FakeTensor):
                where = tracer.call(aten.nonzero.default, index)
                out += [tracer.call(aten.select.int, where, 1, dim) for dim in range(index.dim())]
            else:
                out += list(index.nonzero().unbind(1))
        else:
            out.append(index)
    return out


def _index(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    indices = _expanded(tracer, args[1])
    out: Any = tracer.fake_mode.__torch_dispatch__(func, (), (args[0], indices), {})
    tracer.follow(out)
    values = [tracer.values.of(index) if index is not None else None for index in indices]
    source = tracer.values.of(args[0])
    if (
        source is not None
        and worth_keeping(out)
        and all(v is not None or i is None for v, i in zip(values, indices, strict=True))
    ):
        try:
            tracer.values.keep(out, func(source, values))
        except (RuntimeError, IndexError):
            return out
    return out


def _index_put(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    target, value = args[0], args[2]
    if not isinstance(target, FakeTensor):
        indices = [arg if arg is None else tracer.materialise(arg) for arg in args[1]]
        return func(target, indices, tracer.materialise(value), *args[3:], **kwargs)
    base = tracer.values.of(target)
    parts = [arg if arg is None else tracer.values.of(arg) for arg in args[1]]
    put = tracer.values.of(value)
    masked = len(args[1]) == 1 and args[1][0] is not None and args[1][0].dtype is torch.bool and value.numel() == 1
    # One mask and one number become masked_fill, which needs no positions.
    if not masked:
        _expanded(tracer, args[1])
    out = target if func._schema.name != "aten::index_put" else tracer.like(target)
    tracer.follow(out)
    computable = base is not None and put is not None
    if computable and all(part is not None or item is None for part, item in zip(parts, args[1], strict=True)):
        try:
            result = func(base, parts, put, *args[3:], **kwargs)
        except (RuntimeError, IndexError):
            tracer.values.forget(out)
            return out
        tracer.values.keep(out, result)
    else:
        tracer.values.forget(out)
    return out


def _value_or_largest(tracer: Tracer, func: Any, args: Any, kwargs: Any, size: int, what: str) -> list[torch.Tensor]:
    """Results on the CPU: of the known values, or of all-different ones."""
    value = tracer.values.of(args[0])
    if value is None:
        tracer.writer.assumption(f"{what} were taken to be all different")
        value = torch.arange(size, dtype=args[0].dtype).reshape(args[0].shape)
    out = func(value, *args[1:], **kwargs)
    return list(out) if isinstance(out, (list, tuple)) else [out]


def _kept(tracer: Tracer, real: list[torch.Tensor], device: torch.device) -> list[Any]:
    results = []
    for tensor in real:
        fake = tracer.empty(tensor.shape, tensor.dtype, device)
        tracer.follow(fake)
        if worth_keeping(tensor):
            tracer.values.keep(fake, tensor)
        results.append(fake)
    return results


def _unique(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    real = _value_or_largest(tracer, func, args, kwargs, args[0].numel(), "values passed to unique")
    return tuple(_kept(tracer, real, args[0].device))


def _unique_dim(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return _unique(tracer, func, args, kwargs)


def _bincount(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    minlength = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
    value = tracer.values.of(args[0])
    if value is not None and len(args) < 2:
        return _kept(tracer, [torch.bincount(value, minlength=minlength)], args[0].device)[0]
    tracer.writer.assumption("bincount was taken to have as many bins as it was asked for")
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    dtype = torch.int64 if weights is None else torch.float64 if weights.dtype is torch.float64 else torch.float32
    return tracer.empty((max(1, minlength),), dtype, args[0].device)


def _repeat_interleave(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    value = tracer.values.of(args[0])
    if value is not None:
        return _kept(tracer, [torch.repeat_interleave(value)], args[0].device)[0]
    size = kwargs.get("output_size")
    if size is None:
        tracer.writer.assumption("repeat_interleave was taken to repeat everything once")
        size = args[0].numel()
    return tracer.empty((int(size),), torch.int64, args[0].device)


def _scatter(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    target, index = args[0], args[2]
    if not isinstance(target, FakeTensor):
        return func(*[tracer.materialise(arg) if isinstance(arg, torch.Tensor) else arg for arg in args], **kwargs)
    base, where = tracer.values.of(target), tracer.values.of(index)
    source = args[3] if len(args) > 3 else kwargs.get("value")
    value = tracer.values.of(source) if isinstance(source, torch.Tensor) else source
    if base is not None and where is not None and value is not None:
        base.scatter_(args[1], where, value, **{k: v for k, v in kwargs.items() if k == "reduce"})
        return target
    tracer.follow(target)
    tracer.values.forget(target)
    if not isinstance(source, torch.Tensor) and target.numel():
        # One-hot: the share of ones stays known although the positions are not.
        target.__dict__["_kopt_density"] = min(1.0, index.numel() / target.numel())
    return target


def _nms(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tracer.writer.assumption("non-maximum suppression was taken to keep every box")
    count = args[0].shape[0]
    return _kept(tracer, [torch.arange(count)], args[0].device)[0]


def _foreach(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A list kernel reads and writes lists at once: results are new tensors like the first list's, without more."""
    # One kernel has its number first: a base with lists of exponents.
    first = next(arg for arg in args if isinstance(arg, (list, tuple)))
    name = func._schema.name
    if func._schema.name.endswith("_") or not func._schema.returns:
        for item in first:
            if isinstance(item, FakeTensor):
                tracer.values.forget(item)
            elif item.numel() == 1:
                func([item], *[_slice(tracer, other, first, item) for other in args[1:]], **kwargs)
        return None
    if name in ("aten::_foreach_norm", "aten::_foreach_max"):
        return [tracer.empty((), item.dtype, item.device) for item in first]
    return [tracer.like(item) for item in first]


def _slice(tracer: Tracer, other: Any, whole: Any, item: Any) -> Any:
    """The part of a parallel list that belongs to one tensor."""
    if not isinstance(other, (list, tuple)) or len(other) != len(whole):
        return other
    index = next(index for index, candidate in enumerate(whole) if candidate is item)
    part = other[index]
    return [tracer.materialise(part) if isinstance(part, torch.Tensor) else part]


def _fused(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    for group in args[:1]:
        for item in group:
            tracer.values.forget(item)


def _collective(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A collective writes into its first argument and returns it with its handle, which the fake group gives."""

    def small(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.zeros(1, dtype=value.dtype)
        return [small(item) for item in value] if isinstance(value, list) else value

    try:
        return tracer.fake_mode.__torch_dispatch__(func, (), args, kwargs)
    except (UnsupportedOperatorException, NotImplementedError):
        # Older versions have no fake form of collectives.
        out = func(*[small(arg) for arg in args], **kwargs)
    return (args[0], *out[1:]) if isinstance(out, tuple) else out


def _nothing(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> None:
    return None


def _first(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _like_first(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return tracer.like(args[0])


def _contiguous_first(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    return tracer.empty(args[0].shape, args[0].dtype, args[0].device)
