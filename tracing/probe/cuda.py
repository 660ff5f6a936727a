"""``torch.cuda`` as the chosen GPU would answer: properties, memory, streams, events, graphs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from . import stream as events
from .settings import Settings
from .tracer import Tracer


class FakeStream:
    """A stream is a number; the allocator keeps blocks of different streams apart."""

    _last = 0

    def __init__(self, device: Any = None, priority: int = 0, **identifiers: Any) -> None:
        if "stream_id" in identifiers:
            self.stream_id = int(identifiers["stream_id"])
        else:
            FakeStream._last += 1
            self.stream_id = FakeStream._last
        index = device if isinstance(device, int) else getattr(torch.device(device or "cuda"), "index", None)
        self.device = torch.device("cuda", index if index is not None else torch.cuda.current_device())
        self.device_index = self.device.index
        self.device_type = 1
        self.cuda_stream = self.stream_id
        self.priority = priority

    def __eq__(self, other: object) -> bool:
        return getattr(other, "stream_id", None) == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def record_event(self, event: Any = None) -> Any:
        """An event that is done."""
        return event or FakeEvent()

    def query(self) -> bool:
        """All work is done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    wait_event = wait_stream = lambda self, other: None

    def __enter__(self) -> FakeStream:
        self._before = _Current.stream
        _switch(self)
        return self

    def __exit__(self, *_: object) -> None:
        _switch(self._before)


class FakeEvent:
    """An event that has always happened; a millisecond lies between any two."""

    def __init__(self, *_: object, **__: object) -> None:
        self.cuda_event = self.event_id = 0
        self.device = torch.device("cuda")

    def record(self, stream: Any = None) -> None:
        """Happened already."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds."""
        return 1.0

    def ipc_handle(self) -> bytes:
        """No other process may wait."""
        return b""


class FakeGraph:
    """A CUDA graph whose capture runs once, eagerly; replays repeat no allocation."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def pool(self) -> tuple[int, int]:
        """The id of a memory pool."""
        return (0, 1)

    capture_begin = capture_end = replay = reset = enable_debug_mode = debug_dump = lambda self, *_, **__: None


class _Current:
    stream: Any = None
    tracer: Any = None


def _switch(stream: Any) -> None:
    if stream is None:
        return
    _Current.stream = stream
    _Current.tracer.storages.stream = stream.stream_id


def install(library: ctypes.CDLL, settings: Settings, tracer: Tracer) -> None:
    """Replaces what would ask a driver."""
    cuda = torch.cuda
    _Current.tracer = tracer
    _devices(library, settings)
    _memory(settings, tracer)
    _streams(tracer)
    _randomness()
    _graphs(tracer)
    cuda._initialized = True
    _replace(cuda, _lazy_init=lambda: None, init=lambda: None)
    # Seeds and the like wait for a device that is never started.
    _replace(cuda, _lazy_call=lambda *_, **__: None)
    torch._C._set_only_lift_cpu_tensors(True)


def _replace(module: Any, **replacements: Any) -> None:
    for name, replacement in replacements.items():
        setattr(module, name, distinct(replacement))


def distinct(value: Any) -> Any:
    """A function of its own: the compiler's tables refuse one that stands in two places with different rules."""
    if not isinstance(value, FunctionType):
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    made.__kwdefaults__ = value.__kwdefaults__
    return made


def _devices(library: ctypes.CDLL, settings: Settings) -> None:
    gpu, cuda = settings.gpu, torch.cuda
    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.major,
        minor=gpu.minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.compute_units,
        is_integrated=False,
        is_multi_gpu_board=False,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=64 if gpu.gcn_arch else 32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936,
        L2_cache_size=41943040,
        gcnArchName=gpu.gcn_arch,
        clock_rate=1410000,
        memory_clock_rate=1593000,
        memory_bus_width=5120,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        uuid="00000000-0000-0000-0000-000000000000",
    )

    def exchange(device: int) -> int:
        before = int(library.kopt_current_device())
        if device is not None and device >= 0:
            library.kopt_set_device(device)
        return before

    def select(device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= settings.world_size:
            raise RuntimeError(
                "CUDA error: invalid device ordinal\n"
                f"(the estimate was asked for {settings.world_size} GPU(s); see --world-size)"
            )
        exchange(index if index is not None else -1)

    exchange_c = {"_cuda_exchangeDevice": exchange, "_cuda_maybeExchangeDevice": exchange}
    _replace(
        torch._C,
        _cuda_getDevice=lambda: int(library.kopt_current_device()),
        _cuda_setDevice=select,
        _cuda_getDeviceCount=lambda: settings.world_size,
        _cuda_isInBadFork=lambda: False,
        _cuda_clearCublasWorkspaces=lambda: None,
        _cuda_getCurrentRawStream=lambda device: 0,
        _cuda_synchronize=lambda: None,
        **exchange_c,
    )
    _replace(
        cuda,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: settings.world_size,
        current_device=lambda: int(library.kopt_current_device()),
        set_device=select,
        _exchange_device=exchange,
        _maybe_exchange_device=exchange,
        get_device_properties=lambda device=None: properties,
        get_device_name=lambda device=None: gpu.name,
        get_device_capability=lambda device=None: (gpu.major, gpu.minor),
        get_arch_list=lambda: [f"sm_{gpu.major}{gpu.minor}"],
        is_bf16_supported=lambda *_, **__: gpu.major >= 8 or bool(gpu.gcn_arch),
        is_tf32_supported=lambda: gpu.major >= 8,
        can_device_access_peer=lambda *_: True,
        synchronize=lambda device=None: None,
        ipc_collect=lambda: None,
        utilization=lambda device=None: 0,
        temperature=lambda device=None: 40,
        power_draw=lambda device=None: 100000,
        clock_rate=lambda device=None: 1410,
        is_current_stream_capturing=lambda: False,
    )
    from torch.backends import cudnn

    _replace(cudnn, is_available=lambda: True, version=lambda: 90100, is_acceptable=lambda tensor: tensor.is_cuda)
    _replace(cuda.nvtx, range_push=lambda *_: 0, range_pop=lambda: 0, mark=lambda *_: None, range_start=lambda *_: 0)


def _memory(settings: Settings, tracer: Tracer) -> None:
    cuda, storages = torch.cuda, tracer.storages
    total = settings.gpu.memory_bytes

    def most(*_: Any, **__: Any) -> int:
        return storages.highest

    def reset(*_: Any, **__: Any) -> None:
        storages.highest = storages.allocated

    def empty() -> None:
        tracer.writer.row(events.EMPTY_CACHE, 0)

    def stats(*_: Any, **__: Any) -> dict[str, int]:
        zeros = _Zeros()
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            zeros[f"{kind}.all.current"] = storages.allocated
            zeros[f"{kind}.all.peak"] = most()
        return zeros

    answers = {
        "mem_get_info": lambda device=None: (max(0, total - storages.allocated), total),
        "memory_allocated": lambda device=None: storages.allocated,
        "memory_reserved": lambda device=None: storages.allocated,
        "memory_cached": lambda device=None: storages.allocated,
        "max_memory_allocated": most,
        "max_memory_reserved": most,
        "max_memory_cached": most,
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "reset_max_memory_cached": reset,
        "reset_accumulated_memory_stats": reset,
        "memory_stats": stats,
        "memory_stats_as_nested_dict": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_: [],
        "memory_usage": lambda *_: 0,
        "list_gpu_processes": lambda *_: "",
        "set_per_process_memory_fraction": lambda *_, **__: None,
        "get_per_process_memory_fraction": lambda *_, **__: 1.0,
        "empty_cache": empty,
    }
    for module in (cuda, cuda.memory):
        _replace(module, **answers)
    _replace(
        cuda.memory,
        _record_memory_history=lambda *_, **__: None,
        _snapshot=lambda *_: {"segments": [], "device_traces": []},
        _dump_snapshot=lambda *_: None,
        _set_allocator_settings=lambda *_: None,
    )


class _Zeros(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0


def _streams(tracer: Tracer) -> None:
    cuda = torch.cuda
    default = FakeStream(device=0, stream_id=0)
    _Current.stream = default

    @contextlib.contextmanager
    def stream(selected: Any) -> Iterator[None]:
        before = _Current.stream
        if selected is not None:
            _switch(selected)
        try:
            yield
        finally:
            _switch(before)

    selecting = stream

    class StreamContext(contextlib.AbstractContextManager[None]):
        def __init__(self, stream: Any) -> None:
            self._inner = selecting(stream)

        def __enter__(self) -> None:
            self._inner.__enter__()

        def __exit__(self, *details: Any) -> None:
            self._inner.__exit__(*details)

    def record_stream(tensor: Any, selected: Any) -> None:
        record = tracer.storages.find(tensor)
        if record is not None and record.number:
            tracer.writer.row(events.RECORD_STREAM, record.number, 0, getattr(selected, "stream_id", 0))

    shared = {
        "Stream": FakeStream,
        "Event": FakeEvent,
        "ExternalStream": FakeStream,
        "current_stream": lambda device=None: _Current.stream,
        "default_stream": lambda device=None: default,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "set_stream": _switch,
    }
    _replace(cuda, **shared)
    _replace(cuda.streams, Stream=FakeStream, Event=FakeEvent, ExternalStream=FakeStream)
    torch.Tensor.record_stream = record_stream  # type: ignore[assignment, method-assign]


def _randomness() -> None:
    def state(device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def nothing(*_: Any, **__: Any) -> None:
        return None

    answers: dict[str, Callable[..., Any]] = {
        "get_rng_state": state,
        "get_rng_state_all": lambda: [state() for _ in range(torch.cuda.device_count())],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
    }
    for module in (torch.cuda, torch.cuda.random):
        _replace(module, **answers)
    _replace(torch, Generator=FakeGenerator)


class _AnyGenerator(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class FakeGenerator(torch._C.Generator, metaclass=_AnyGenerator):
    """A generator of the CPU that says it is the GPU's: builds with CUDA would start the driver for one."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> FakeGenerator:
        base: Any = torch._C.Generator
        made: FakeGenerator = base.__new__(cls, "cpu")
        made._device = torch.device(device)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._device


def _graphs(tracer: Tracer) -> None:
    @contextlib.contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        tracer.writer.assumption("CUDA graphs were run eagerly: memory that a capture keeps in its pool is not counted")
        yield

    _replace(
        torch.cuda,
        CUDAGraph=FakeGraph,
        graph=graph,
        graph_pool_handle=lambda: (0, 1),
        make_graphed_callables=lambda callables, *_, **__: callables,
    )
