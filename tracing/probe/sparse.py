"""Sparse tensors: fake ones hold fake indices and values, and how many they hold is known or assumed.

PyTorch's own fake kernels give sparse results without a single element. Here results get the elements that CUDA's
kernels would give them, and what those kernels allocate beside them (``SparseCUDATensor.cu``,
``SparseCUDATensorMath.cu``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from .tracer import Operation, Tracer

aten = torch.ops.aten
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
# Of what they are given these take a part or a fact, with nothing new.
_NATIVE = (
    "aten::_nnz",
    "aten::is_coalesced",
    "aten::sparse_dim",
    "aten::dense_dim",
    "aten::_coalesced_",
    "aten::detach",
    "aten::alias",
    "aten::crow_indices",
    "aten::col_indices",
    "aten::ccol_indices",
    "aten::row_indices",
    "aten::_sparse_coo_tensor_with_dims_and_tensors",
    "aten::_sparse_compressed_tensor_unsafe",
    "aten::sparse_compressed_tensor",
    "aten::sparse_csr_tensor",
)
# Sorting takes its pairs of keys and positions twice.
_SORTED_BYTES_PER_ELEMENT = 2 * (8 + 8)


def is_sparse(tensor: Any) -> bool:
    """Whether a value is a tensor that has no storage of its own."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided


def parts(tracer: Tracer, tensor: Any) -> list[Any]:
    """Indices and values of a sparse tensor, values last; views of its own memory."""
    kept: list[Any] | None = tensor.__dict__.get("_kopt_parts")
    if kept is not None:
        return kept
    compressed = _COMPRESSED.get(tensor.layout)
    names = (*compressed, "values") if compressed else ("_indices", "_values")
    # A real one made fake would lose its elements.
    overloads = [getattr(aten, name).default for name in names]
    return [tracer.plain(item, tensor) if isinstance(tensor, FakeTensor) else item(tensor) for item in overloads]


def work(tracer: Tracer, operation: Operation, inputs: list[Any], outputs: list[Any]) -> tuple[int, int]:
    """Bytes moved and FLOPs, of the elements that are held."""
    held = [part for item in (*inputs, *outputs) for part in (parts(tracer, item) if is_sparse(item) else (item,))]
    moved = sum(item.numel() * item.element_size() for item in held)
    if _HANDLERS.get(operation.name) is not _product or not outputs:
        return moved, 0
    elements = max(parts(tracer, item)[-1].numel() for item in inputs if is_sparse(item))
    return moved, 2 * elements * int(outputs[0].shape[-1])


def run(tracer: Tracer, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation that takes or gives a sparse tensor."""
    if operation.name in ("aten::_indices", "aten::_values", "aten::indices", "aten::values"):
        return parts(tracer, args[0])[-1 if operation.name.endswith("values") else 0]
    if operation.name in _NATIVE:
        return tracer.plain(func, *args, **kwargs)
    handler = _HANDLERS.get(operation.name)
    if handler is not None:
        return handler(tracer, func, args, kwargs)
    first = next((arg for arg in args if is_sparse(arg)), None)
    if first is not None and operation.in_place and args[0] is first:
        return first
    out = tracer.plain(func, *args, **kwargs)
    if is_sparse(out) and first is not None and out.layout is torch.sparse_coo is first.layout:
        return _like(tracer, first, out)
    return out


def _like(tracer: Tracer, source: Any, out: Any) -> Any:
    """A result with the pattern of ``source`` in memory of its own: element-wise operations, copies, transposing."""
    indices, values = parts(tracer, source)
    sparse_dims = indices.shape[0]
    if out.dim() != source.dim():
        # Sums over a sparse dimension keep at most the elements that there were.
        sparse_dims = max(1, min(sparse_dims, out.dim()))
    shape = (values.shape[0], *out.shape[sparse_dims:])
    made = tracer.call(
        aten.empty.memory_format, [sparse_dims, values.shape[0]], dtype=torch.int64, device=indices.device
    )
    data = tracer.call(aten.empty.memory_format, list(shape), dtype=out.dtype, device=values.device)
    return build(tracer, made, data, out.shape, tuple(out.shape) == tuple(source.shape) and coalesced(tracer, source))


def build(tracer: Tracer, indices: Any, values: Any, shape: Any, sorted_once: bool = False) -> Any:
    """A tensor of coordinates around indices ``(sparse dimensions, n)`` and values ``(n, …)``."""
    out = tracer.plain(
        aten._sparse_coo_tensor_with_dims_and_tensors.default,
        indices.shape[0],
        values.dim() - 1,
        list(shape),
        indices,
        values,
        dtype=values.dtype,
        layout=torch.sparse_coo,
        device=values.device,
        pin_memory=False,
    )
    if sorted_once:
        out = tracer.plain(aten._coalesced_.default, out, True)
    # Known values hang on these objects, not on the views that PyTorch would make anew.
    out.__dict__["_kopt_parts"] = [indices, values]
    return out


def coalesced(tracer: Tracer, tensor: Any) -> bool:
    """Whether every place occurs once, in order."""
    return bool(tracer.plain(aten.is_coalesced.default, tensor))


def _coalesce(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if coalesced(tracer, tensor):
        return tensor
    indices, values = parts(tracer, tensor)
    count, positions = indices.shape[1], tracer.values.of(indices)
    places = math.prod(tensor.shape[: indices.shape[0]])
    if positions is not None:
        kept = int(torch.unique(positions, dim=1).shape[1]) if count else 0
    else:
        kept = min(count, places)
        tracer.writer.assumption("places of sparse tensors were taken to be all different")
    working = _scratch(tracer, 3 * 8 * count + _SORTED_BYTES_PER_ELEMENT * count, values.device)
    made = tracer.call(aten.empty.memory_format, [indices.shape[0], kept], dtype=torch.int64, device=indices.device)
    data = tracer.call(aten.empty.memory_format, [kept, *values.shape[1:]], dtype=values.dtype, device=values.device)
    del working
    if positions is not None:
        tracer.values.keep(made, torch.unique(positions, dim=1))
    return build(tracer, made, data, tensor.shape, sorted_once=True)


def _scratch(tracer: Tracer, size: int, device: torch.device) -> Any:
    """Memory that a kernel takes while it runs."""
    return tracer.call(aten.empty.memory_format, [size], dtype=torch.uint8, device=device)


def _product(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Sparse times dense: the kernel wants sorted rows as 32-bit pointers, and its result by columns first."""
    first, second = args[1:3] if "addmm" in func._schema.name else args[:2]
    shape = [first.shape[0], *second.shape[1:]]
    if is_sparse(first) and is_sparse(second):
        # The truth depends on where the elements are.
        tracer.writer.assumption("a product of sparse matrices was taken to have as many elements as its larger factor")
        larger = max((first, second), key=lambda item: int(parts(tracer, item)[-1].shape[0]))
        return _like(tracer, larger, tracer.plain(func, *args, **kwargs))
    matrix, dense = (first, second) if is_sparse(first) else (second, first)
    out = tracer.call(aten.empty.memory_format, shape, dtype=dense.dtype, device=dense.device)
    if matrix.layout is torch.sparse_coo:
        whole = _coalesce(tracer, func, (matrix,), {})
        count = int(parts(tracer, whole)[-1].shape[0])
        pointers = _scratch(tracer, 4 * (2 * count + matrix.shape[0] + 1), out.device)
        by_columns = tracer.call(aten.empty.memory_format, shape, dtype=dense.dtype, device=dense.device)
        del pointers, by_columns, whole
    return out


def to_copy(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy on another device or in another type."""
    source = args[0]
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    if kwargs.get("layout") not in (None, source.layout):
        return tracer.plain(func, *args, **kwargs)
    *indices, values = parts(tracer, source)
    indices = [tracer.call(aten._to_copy.default, index, device=device) for index in indices]
    values = tracer.call(aten._to_copy.default, values, device=device, dtype=dtype)
    if not isinstance(values, FakeTensor):
        # A small one that comes back to the host.
        with tracer.fake_mode:
            values = torch.empty_like(values)
    if source.layout is torch.sparse_coo:
        return build(tracer, indices[0], values, source.shape, coalesced(tracer, source))
    return tracer.plain(
        aten._sparse_compressed_tensor_unsafe.default,
        *indices,
        values,
        list(source.shape),
        dtype=values.dtype,
        layout=source.layout,
        device=values.device,
    )


def _sum_of_two(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Sparse and sparse are written one behind the other; dense and sparse are dense."""
    first, second = args[0], args[1]
    if not (is_sparse(first) and is_sparse(second)) or first.layout is not torch.sparse_coo:
        return first if func._schema.name.endswith("_") else tracer.plain(func, *args, **kwargs)
    item, other = parts(tracer, first), parts(tracer, second)
    indices = tracer.call(aten.cat.default, [item[0], other[0]], 1)
    values = tracer.call(aten.cat.default, [item[1], other[1]], 0)
    return build(tracer, indices, values, first.shape)


def _from_dense(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Of a dense tensor: as many elements as are known not to be zero, else all."""
    source = args[0]
    if is_sparse(source):
        return source
    dims = args[1] if len(args) > 1 and isinstance(args[1], int) else source.dim()
    where = tracer.call(aten.nonzero.default, source)
    count = where.shape[0]
    indices = tracer.call(aten.empty.memory_format, [dims, count], dtype=torch.int64, device=source.device)
    shape = [count, *source.shape[dims:]]
    values = tracer.call(aten.empty.memory_format, shape, dtype=source.dtype, device=source.device)
    return build(tracer, indices, values, source.shape, sorted_once=True)


def _masked(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """Elements of the first at the places of the second."""
    values = parts(tracer, args[1])[1]
    data = tracer.call(aten.empty.memory_format, list(values.shape), dtype=args[0].dtype, device=values.device)
    return build(tracer, parts(tracer, args[1])[0], data, args[1].shape, coalesced(tracer, args[1]))


_HANDLERS = {
    "aten::_coalesce": _coalesce,
    "aten::_to_copy": to_copy,
    "aten::_sparse_addmm": _product,
    "aten::addmm": _product,
    "aten::mm": _product,
    "aten::_sparse_mm": _product,
    "aten::_sparse_sparse_matmul": _product,
    "aten::add": _sum_of_two,
    "aten::add_": _sum_of_two,
    "aten::sub": _sum_of_two,
    "aten::_to_sparse": _from_dense,
    "aten::sparse_mask": _masked,
}
# Names of operations that make sparse tensors of dense ones.
MAKERS = ("aten::_to_sparse", "aten::sparse_mask")
