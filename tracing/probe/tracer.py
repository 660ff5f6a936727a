"""The dispatch mode under the script: operations on the GPU run on fake tensors, small ones on the CPU for real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from . import sparse
from . import stream as events
from .convolutions import Convolutions
from .recipes import Recipes
from .settings import Settings
from .storages import LiveStorages
from .stream import EventWriter
from .values import Values, absorbed, hint, worth_keeping

# Weights are made by `empty`; above a kilobyte or so they are fake at once, and initialising them costs nothing.
# Data is made by the others and stays real up to a few megabytes, so that scripts may look at it.
_REAL_EMPTY = 1024
_REAL_FLOATS = 1 << 20
_REAL_INTEGERS = 1 << 26
_FALLBACK = 1 << 25
_EMPTY = ("empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided")
_FACTORIES = (
    *_EMPTY,
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "normal",
    "eye",
    "arange",
    "linspace",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randperm",
)

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::_scaled_mm", "aten::mv")

Handler = Callable[["Tracer", Any, tuple[Any, ...], dict[str, Any]], Any]


class UnsupportedOperation(Exception):
    """An operation that the fake device cannot follow."""


class Operation:
    """What is known of one operator overload."""

    __slots__ = (
        "composite",
        "convolves",
        "factory",
        "flops",
        "handler",
        "id",
        "in_place",
        "mutated",
        "name",
        "packet",
        "random",
        "sparsifies",
    )

    def __init__(self, func: Any, number: Callable[[str], int]) -> None:
        schema = func._schema
        self.name: str = schema.name
        base = self.name.rsplit("::", 1)[-1]
        self.id = number(self.name)
        self.packet = func._overloadpacket
        self.factory = base if self.name.startswith("aten::") and base in _FACTORIES else ""
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.mutated = tuple(
            argument.name if argument.kwarg_only else index
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self.in_place = 0 in self.mutated
        self.composite = False
        self.convolves = self.name in Convolutions.NAMES
        self.sparsifies = self.name in sparse.MAKERS
        self.handler: Handler | None = None
        self.flops: Callable[..., int] | None = None


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of the script below autograd."""

    def __init__(self, writer: EventWriter, storages: LiveStorages, settings: Settings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writer = writer
        self.storages = storages
        self.settings = settings
        self.values = Values(storages)
        self.fake_mode = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        # Recipes remember more cheaply, and its own memory imports an algebra system.
        self.fake_mode.cache_enabled = False
        self.handlers: dict[str, Handler] = {}
        self.flop_formulas: dict[Any, Callable[..., int]] = {}
        self.current_module: Callable[[], int] = lambda: 0
        self.count = 0
        self.sparse_met = False
        self._recipes = Recipes()
        self._workspaces: set[tuple[int, int]] = set()
        self._convolutions = Convolutions(writer)
        self._operations: dict[Any, Operation] = {}
        storages.parts = lambda tensor: sparse.parts(self, tensor) if isinstance(tensor, FakeTensor) else (tensor,)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # PyTorch would wrap the method below, once for each operation.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(_FAKE) is not None:
            # A library works out shapes in a fake mode of its own (DTensor does): nothing is allocated there.
            return func(*args, **kwargs)
        fake = False
        for kind in types:
            if kind is FakeTensor:
                fake = True
            elif kind is not torch.Tensor and kind is not torch.nn.Parameter and _dispatches(kind):
                return NotImplemented
        operation = self._operations.get(func) or self._describe(func)
        if operation.composite:
            # Without autograd (inference mode) these arrive whole; their parts are what is allocated.
            with self:
                return func.decompose(*args, **kwargs)
        if fake or self._becomes_fake(operation, args, kwargs):
            return self.run(operation, func, args, kwargs)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)

    def run(self, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operation with fake tensors: result, followed storages, known values, one OP event."""
        self.count += 1
        storages = self.storages
        storages.module = self.current_module()
        storages.operation = operation.id
        inputs = list(tensors(args, kwargs))
        if operation.sparsifies or (self.sparse_met and any(map(sparse.is_sparse, inputs))):
            out = sparse.run(self, operation, func, args, kwargs)
        elif operation.handler is not None:
            out = operation.handler(self, func, args, kwargs)
        elif operation.in_place and not isinstance(args[0], FakeTensor) and isinstance(args[0], torch.Tensor):
            return func(*self._real(args), **self._real(kwargs))
        else:
            out = self._remembered(operation, func, args, kwargs, inputs)
            self._learn(operation, func, args, kwargs, inputs, out)
        made = self.follow(out)
        if operation.name in _GEMMS and args and isinstance(args[0], FakeTensor) and args[0].fake_device.type == "cuda":
            self._workspace()
        if operation.convolves:
            self._convolutions.record(func, args, kwargs, storages.stream, storages.module, operation.id)
        if made or operation.mutated or operation.flops is not None:
            self._emit(operation, args, kwargs, inputs, out)
        return out

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation as if the script had asked for it; for handlers and stand-ins inside a dispatch."""
        return self.run(self._operations.get(func) or self._describe(func), func, args, kwargs)

    def plain(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation as in PyTorch's own fake mode, neither followed nor reported."""
        return self.fake_mode.__torch_dispatch__(func, (), args, kwargs)

    def empty(self, shape: Any, dtype: torch.dtype, device: torch.device) -> Any:
        """A fake tensor, not yet followed."""
        with self.fake_mode:
            return torch.empty(tuple(shape), dtype=dtype, device=device)

    def like(self, tensor: Any) -> Any:
        """A fake tensor of the same shape, strides, type and device."""
        with self.fake_mode:
            return torch.empty_like(tensor)

    def follow(self, out: Any) -> bool:
        """Follows the storages of results; true when there are new ones on the GPU."""
        before = self.storages.allocations
        for item in (out,) if isinstance(out, FakeTensor) else out if isinstance(out, (list, tuple)) else ():
            if not isinstance(item, FakeTensor):
                continue
            if item.layout is torch.strided:
                self.storages.follow(item, item.fake_device)
            else:
                self.sparse_met = True
                for part in sparse.parts(self, item):
                    self.storages.follow(part, item.fake_device)
        return self.storages.allocations != before

    def _workspace(self) -> None:
        """cuBLAS keeps one workspace per handle (of a thread: autograd has its own) and stream."""
        key = (threading.get_ident(), self.storages.stream)
        if key not in self._workspaces:
            self._workspaces.add(key)
            size = self.settings.gpu.cublas_workspace_bytes
            name = self.writer.name(f"cublas#{len(self._workspaces)}")
            self.writer.row(events.WORKSPACE, name, size, self.storages.stream)

    def _describe(self, func: Any) -> Operation:
        operation = self._operations[func] = Operation(func, self.writer.name)
        overload = f"{operation.name}.{func._schema.overload_name}"
        operation.handler = self.handlers.get(overload) or self.handlers.get(operation.name)
        if operation.handler is None:
            family = next((name for name in ("aten::_foreach_", "c10d::") if operation.name.startswith(name)), "")
            operation.handler = self.handlers.get(family)
        if operation.handler is None and operation.name.startswith("aten::"):
            operation.composite = func.has_kernel_for_dispatch_key(_COMPOSITE)
        operation.flops = self.flop_formulas.get(operation.packet)
        return operation

    def _becomes_fake(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            return True
        if not operation.factory:
            return False
        size = _elements(operation.factory, args)
        dtype = kwargs.get("dtype")
        if size <= _REAL_EMPTY:
            return False
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            return size > _REAL_INTEGERS
        if operation.factory in _EMPTY:
            like = args[0] if args and isinstance(args[0], torch.Tensor) else None
            whole = dtype is None and like is not None and not like.is_floating_point()
            return size > (_REAL_INTEGERS if whole else _REAL_EMPTY)
        return size > (_REAL_INTEGERS if operation.factory in ("randint", "arange", "randperm") else _REAL_FLOATS)

    def _remembered(
        self, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any]
    ) -> Any:
        key = self._recipes.key(func, args, kwargs)
        if key is None:
            return self._fake(operation, func, args, kwargs)
        out = self._recipes.make(key, inputs)
        if out is NotImplemented:
            out = self._fake(operation, func, args, kwargs)
            self._recipes.keep(key, func, inputs, out)
        return out

    def _fake(self, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("generator") is not None or kwargs.get("pin_memory"):
            kwargs = {**kwargs, **({"generator": None} if "generator" in kwargs else {})}
            kwargs.pop("pin_memory", None)
        try:
            return self.fake_mode.__torch_dispatch__(func, (), args, kwargs)
        except (UnsupportedOperatorException, NotImplementedError, DataDependentOutputException) as error:
            return self._by_zeros(operation, func, args, kwargs, error)
        except DynamicOutputShapeException as error:
            return self._by_zeros(operation, func, args, kwargs, error)

    def _by_zeros(
        self, operation: Operation, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cause: Exception
    ) -> Any:
        """Runs an operation that has no fake form on zeros of the CPU, to learn what its results look like."""
        device = next((item.fake_device for item in tensors(args, kwargs) if isinstance(item, FakeTensor)), None)
        if device is None or sum(item.numel() for item in tensors(args, kwargs)) > _FALLBACK:
            raise UnsupportedOperation(f"{operation.name} has no fake form: {cause}") from cause
        try:
            out = func(*self._real(args), **self._real(kwargs))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            # PyTorch's own text goes on with every backend that the operation has.
            why = str(error).split(". ", 1)[0]
            raise UnsupportedOperation(f"{operation.name} has no fake form; on the CPU: {why}") from cause
        self.writer.assumption(f"{operation.name} was sized by running it on zeros")
        return _mapped(out, lambda tensor: self.empty(tensor.shape, tensor.dtype, device))

    def _real(self, value: Any) -> Any:
        """Arguments with real tensors on the CPU in the place of fake ones."""
        if isinstance(value, dict):
            return {
                key: torch.device("cpu") if key == "device" and item is not None else self._real(item)
                for key, item in value.items()
                if key != "pin_memory"
            }
        return _mapped(value, self.materialise)

    def materialise(self, tensor: Any) -> Any:
        """Real values on the CPU: the known ones, else zeros (a single number: one)."""
        value = self.values.of(tensor)
        if value is not None:
            return value
        make = torch.ones if tensor.numel() == 1 and tensor.dtype is not torch.bool else torch.zeros
        return make(tensor.shape, dtype=tensor.dtype)

    def _learn(
        self,
        operation: Operation,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Any],
        out: Any,
    ) -> None:
        values = self.values
        computable = self._computable(operation, inputs, out)
        if computable:
            self.follow(out)
            try:
                result = func(*self._real(args), **self._real(kwargs))
            except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
                computable = False
            else:
                for fake, real in zip(_flat(out), _flat(result), strict=False):
                    if isinstance(fake, FakeTensor) and isinstance(real, torch.Tensor):
                        values.keep(fake, real)
        if not computable:
            for index in operation.mutated:
                target = kwargs.get(index) if isinstance(index, str) else args[index] if index < len(args) else None
                for item in _flat(target):
                    if isinstance(item, FakeTensor):
                        values.forget(item)
            value = absorbed(values, operation.name, args, out)
            if value is not None:
                self.follow(out)
                values.keep(out, value)
        hint(operation.name, inputs, args, out)

    def _computable(self, operation: Operation, inputs: list[Any], out: Any) -> bool:
        """Whether the results follow from known values and are small enough to carry along."""
        if operation.random and any(isinstance(item, FakeTensor) and item.is_floating_point() for item in _flat(out)):
            return False
        for item in inputs:
            if isinstance(item, FakeTensor) and "_kopt_value" not in item.__dict__:
                return False
        result = False
        for item in _flat(out):
            if isinstance(item, FakeTensor):
                result = True
                if not worth_keeping(item):
                    return False
        return result and all(self.values.of(item) is not None for item in inputs)

    def _emit(
        self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Any], out: Any
    ) -> None:
        outputs = [item for item in _flat(out) if isinstance(item, FakeTensor) and item.fake_device.type == "cuda"]
        if not outputs and not any(isinstance(item, FakeTensor) and item.fake_device.type == "cuda" for item in inputs):
            return
        if self.sparse_met and any(map(sparse.is_sparse, inputs)):
            moved, flops = sparse.work(self, operation, inputs, outputs)
        else:
            moved, flops = sum(item.numel() * item.element_size() for item in (*inputs, *outputs)), 0
        if operation.flops is not None and not flops:
            try:
                flops = int(operation.flops(*args, **kwargs, out_val=out))
            except (TypeError, ValueError, AssertionError, IndexError, AttributeError, NotImplementedError):
                flops = 0
        self.writer.row(events.OP, self.count, flops, moved, self.storages.module, operation.id)


def _dispatches(kind: Any) -> bool:
    """Whether a class of tensors has operations of its own, rather than a name or methods."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def tensors(args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The tensors among arguments, one list deep."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for tensor in value:
                if isinstance(tensor, torch.Tensor):
                    yield tensor


def _elements(factory: str, args: tuple[Any, ...]) -> int:
    """How many elements a factory is asked for."""
    if factory in ("arange", "linspace", "randperm", "eye"):
        numbers = [arg for arg in args if isinstance(arg, (int, float))]
        size = int(max(map(abs, numbers), default=0))
        return size * size if factory == "eye" else size
    if factory.endswith("_like"):
        return int(args[0].numel())
    sizes = next((arg for arg in args if isinstance(arg, (list, tuple))), ())
    count = 1
    for size in sizes:
        count *= int(size)
    return count


def _flat(value: Any) -> tuple[Any, ...] | list[Any]:
    if isinstance(value, (list, tuple)):
        return [entry for item in value for entry in _flat(item)]
    return (value,)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        changed = [_mapped(item, change) for item in value]
        return changed if isinstance(value, list) else tuple(changed)
    return torch.device("cpu") if isinstance(value, torch.device) else value
