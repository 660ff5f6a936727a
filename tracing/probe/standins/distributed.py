"""One rank of a world that is not there: PyTorch's fake process group, and DDP without its reducer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn import parallel
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from ..session import Session

_FIRST_BUCKET = 1 << 20
_BUCKET_MIB = 25


def install(session: Session) -> None:
    """Patches process groups, object collectives, spawning and DDP; sets what a launcher would."""
    settings = session.settings
    if settings.world_size > 1:
        world = str(settings.world_size)
        os.environ.update(
            RANK=str(settings.rank), LOCAL_RANK=str(settings.rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world
        )
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
    if not distributed.is_available():
        return
    _groups(session)
    _objects()
    _spawn(session)
    parallel.DistributedDataParallel = _ddp(session)  # type: ignore[misc]
    parallel.distributed.DistributedDataParallel = parallel.DistributedDataParallel  # type: ignore[misc]
    _data_parallel(session)


def _groups(session: Session) -> None:
    from torch.distributed import distributed_c10d

    module: Any = distributed_c10d
    original, original_new = module.init_process_group, module.new_group

    def init(backend: Any = None, *_: Any, **kwargs: Any) -> None:
        if module.is_initialized():
            return
        from torch.testing._internal.distributed.fake_pg import FakeStore

        session.writer.stand_in(
            "torch.distributed", "collectives return at once and buffers of the communication library are not counted"
        )
        world = int(kwargs.get("world_size") or -1)
        world = world if world > 0 else int(os.environ.get("WORLD_SIZE", session.settings.world_size))
        rank = int(kwargs.get("rank") or 0)
        original("fake", store=FakeStore(), rank=max(0, rank), world_size=world)

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        kept = {name: kwargs[name] for name in ("group_desc",) if name in kwargs}
        return original_new(ranks, backend="fake", **kept)

    places: tuple[Any, ...] = (module, distributed)
    for namespace in places:
        namespace.init_process_group, namespace.new_group = init, new_group
        namespace.is_nccl_available = lambda: True
        namespace.barrier = namespace.monitored_barrier = lambda *_, **__: None
        namespace.is_torchelastic_launched = lambda: "LOCAL_RANK" in os.environ
    from torch.distributed import device_mesh

    mesh: Any = device_mesh
    for name, replacement in (("init_process_group", init), ("new_group", new_group)):
        if hasattr(mesh, name):
            setattr(mesh, name, replacement)


def _objects() -> None:
    """Collectives on Python objects would wait for bytes: every other rank has what this one has."""

    def gather_all(objects: list[Any], item: Any, group: Any = None) -> None:
        objects[:] = [item] * len(objects)

    def gather(item: Any, objects: list[Any] | None = None, *_: Any, **__: Any) -> None:
        if objects is not None:
            objects[:] = [item] * len(objects)

    def scatter(out: list[Any], inputs: Any = None, *_: Any, **__: Any) -> None:
        if inputs:
            out[0] = inputs[0]

    from torch.distributed import distributed_c10d

    for namespace in (distributed, distributed_c10d):
        patched: Any = namespace
        patched.all_gather_object, patched.gather_object = gather_all, gather
        patched.scatter_object_list = scatter
        patched.broadcast_object_list = lambda *_, **__: None


def _spawn(session: Session) -> None:
    def spawn(function: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        session.writer.stand_in("torch.multiprocessing.spawn", "the first process runs alone, in this one")
        os.environ.setdefault("WORLD_SIZE", str(nprocs))
        function(0, *args)

    multiprocessing: Any = torch.multiprocessing
    multiprocessing.spawn = spawn
    if hasattr(multiprocessing, "spawn") and hasattr(torch.multiprocessing, "start_processes"):
        multiprocessing.start_processes = spawn


def _ddp(session: Session) -> Any:
    original: Any = parallel.DistributedDataParallel

    class DistributedDataParallel(original):  # type: ignore[misc]
        """The wrapped module and its buckets: every gradient once more, unless gradients are views of them."""

        def __init__(self, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
            torch.nn.Module.__init__(self)
            session.writer.stand_in("DistributedDataParallel", "its reducer needs a driver; its buckets are counted")
            self.module = module
            self.device_ids = device_ids
            self.device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
            self.require_backward_grad_sync = self.require_forward_param_sync = True
            self.gradient_as_bucket_view = bool(kwargs.get("gradient_as_bucket_view"))
            self.find_unused_parameters = bool(kwargs.get("find_unused_parameters"))
            self.static_graph = bool(kwargs.get("static_graph"))
            self.parameters_to_ignore: set[str] = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
            self.process_group = kwargs.get("process_group")
            self.bucket_bytes_cap = int((kwargs.get("bucket_cap_mb") or _BUCKET_MIB) * 1024 * 1024)
            self._buckets = [] if self.gradient_as_bucket_view else _buckets(self)

        def forward(self, *inputs: Any, **kwargs: Any) -> Any:
            if self.device_ids and self.device.type == "cuda":
                inputs, kwargs = tree_map(self._on_device, (inputs, kwargs))
            return self.module(*inputs, **kwargs)

        def _on_device(self, item: Any) -> Any:
            """Inputs on the host are copied to the module's one device."""
            return item.to(self.device) if isinstance(item, torch.Tensor) else item

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            yield

        @contextlib.contextmanager
        def join(self, *_: Any, **__: Any) -> Iterator[None]:
            yield

        def train(self, mode: bool = True) -> Any:
            torch.nn.Module.train(self, mode)
            return self

        def register_comm_hook(self, *_: Any, **__: Any) -> None:
            """Communication takes no time here."""

        def _set_static_graph(self) -> None:
            self.static_graph = True

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return {}

        def __getstate__(self) -> dict[str, Any]:
            return self.__dict__.copy()

        def __setstate__(self, state: dict[str, Any]) -> None:
            self.__dict__.update(state)

    DistributedDataParallel.__qualname__ = "DistributedDataParallel"
    return DistributedDataParallel


def _buckets(ddp: Any) -> list[Any]:
    """Flat buffers per type, in the reverse order of the parameters, the first small: as the reducer makes them."""
    made = []
    open_buckets: dict[Any, int] = {}
    limits: dict[Any, int] = {}
    named = [(name, item) for name, item in ddp.module.named_parameters() if item.requires_grad]
    for name, item in reversed(named):
        if name in ddp.parameters_to_ignore:
            continue
        key = (item.dtype, item.device)
        open_buckets[key] = open_buckets.get(key, 0) + item.numel()
        if open_buckets[key] * item.element_size() >= limits.get(key, _FIRST_BUCKET):
            made.append(torch.empty(open_buckets.pop(key), dtype=item.dtype, device=item.device))
            limits[key] = ddp.bucket_bytes_cap
    made += [torch.empty(count, dtype=dtype, device=device) for (dtype, device), count in open_buckets.items()]
    return made


def _data_parallel(session: Session) -> None:
    """With one visible GPU DataParallel calls its module; with more it would need threads on each."""
    original: Any = parallel.DataParallel
    create = original.__init__

    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        if session.settings.world_size > 1:
            session.writer.warning("DataParallel was sized as if its first GPU did all the work")
        create(self, module, [torch.cuda.current_device()], *args, **kwargs)

    original.__init__ = init
