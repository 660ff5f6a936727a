"""Data loaders work in this process, and saving writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

if TYPE_CHECKING:
    from ..session import Session

_IN_PROCESS = {
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "multiprocessing_context": None,
    "timeout": 0,
    "worker_init_fn": None,
}
_BATCHES = 2


def install(session: Session) -> None:
    """Patches ``DataLoader`` and ``torch.save``/``torch.load``."""
    _loaders(session)
    _files(session)


def _loaders(session: Session) -> None:
    loader: Any = data.DataLoader
    original, iterate = loader.__init__, loader.__iter__

    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
        given = {**dict(zip(names, args, strict=False)), **kwargs} if len(args) <= len(names) else kwargs
        rest = () if given is not kwargs else args
        original(self, *rest, **{**given, **{name: _IN_PROCESS[name] for name in _IN_PROCESS if name in given}})

    def batches(self: Any) -> Iterator[Any]:
        # The loop that became steady ends here, and with it the epoch; what follows it sees two batches each.
        steps = session.steps
        left = _BATCHES if steps.draining else 0
        for batch in iterate(self):
            if steps.draining or steps.skims:
                if left == 0:
                    return
                left -= 1
            yield batch

    loader.__init__ = create
    loader.__iter__ = lambda self: _Batches(batches(self))


class _Batches:
    """An iterator with the attributes that libraries look for on a loader's."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._num_workers = 0

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


def _files(session: Session) -> None:
    original = torch.load

    def save(*_: Any, **__: Any) -> None:
        session.writer.stand_in("torch.save", "nothing is written while a script is only sized")

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A checkpoint's own values do not matter; on the CPU it costs no memory of the GPU.
        return original(f, "cpu", *args, **kwargs)

    patched: Any = torch
    patched.save, patched.load = save, load
