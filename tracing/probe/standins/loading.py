"""Data loaders work in this process, and saving writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import data

from .guarded import ABSENT, expected

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
        arguments = {**dict(zip(names, args, strict=False)), **kwargs} if len(args) <= len(names) else kwargs
        rest = () if arguments is not kwargs else args
        if session.stands_in_for_data:
            arguments = _filling(session, arguments)
        original(self, *rest, **{**arguments, **{name: _IN_PROCESS[name] for name in _IN_PROCESS if name in arguments}})

    def batches(self: Any) -> Iterator[Any]:
        # The loop that became steady ends here, and with it the epoch; what follows it sees two batches each.
        steps = session.steps
        remaining = _BATCHES if steps.draining else 0
        for batch in iterate(self):
            if steps.draining or steps.skims:
                if remaining == 0:
                    return
                remaining -= 1
            yield batch

    loader.__init__ = create
    loader.__iter__ = lambda self: _Batches(batches(self))


def _filling(session: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a loader whose batches are as large as the script wants them, however small the stand-in is."""
    dataset, size, sampler = arguments.get("dataset"), arguments.get("batch_size", 1), arguments.get("sampler")
    try:
        missing = isinstance(size, int) and len(dataset) < _BATCHES * size  # type: ignore[arg-type]
    except TypeError:  # one that streams
        return arguments
    if not missing:
        return arguments
    filled = _Repeated(dataset, _BATCHES * size)
    if sampler is None or type(sampler) in (data.RandomSampler, data.SequentialSampler):
        return {**arguments, "dataset": filled, "sampler": sampler and type(sampler)(filled)}
    if len(dataset) < size:  # type: ignore[arg-type]
        session.writer.warning(f"batches of {size:,} were sized as {len(dataset):,}: the data set is not there")  # type: ignore[arg-type]
    return arguments


class _Repeated(data.Dataset[Any]):
    """Samples of a small data set, again and again."""

    def __init__(self, dataset: Any, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._dataset[int(index) % len(self._dataset)]

    def __getattr__(self, name: str) -> Any:
        if name in ("_dataset", "__getitems__"):
            raise AttributeError(name)
        return getattr(self._dataset, name)


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
        try:
            return original(f, "cpu", *args, **kwargs)
        except FileNotFoundError as error:
            if expected(ABSENT):
                raise
            session.writer.stand_in(
                f"torch.load of {os.fspath(f)}", "not there: taken for a checkpoint, of which nothing is loaded"
            )
            return Absent(error)

    patched: Any = torch
    patched.save, patched.load = save, load
    _load_nothing(torch.nn.Module, torch.nn.modules.module._IncompatibleKeys([], []))
    _load_nothing(torch.optim.Optimizer, None)


def _load_nothing(kind: Any, result: Any) -> None:
    """Loading what is absent, or what a script made of its no entries, changes nothing."""
    original = kind.load_state_dict

    def load(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, Absent) or (Absent.met and not state_dict):
            return result
        return original(self, state_dict, *args, **kwargs)

    kind.load_state_dict = load


class Absent(dict[str, Any]):
    """The content of a checkpoint that is not there: every entry is as absent, as a number it is zero.

    Whoever wants more of it than a checkpoint has gets the error that the file is missing.
    """

    met = False

    def __init__(self, error: FileNotFoundError) -> None:
        super().__init__()
        Absent.met = True
        self.__dict__["_error"] = error

    def __missing__(self, key: Any) -> Absent:
        if not isinstance(key, str):
            raise self._error
        return Absent(self._error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self.__dict__["_error"]

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        return 0.0

    def __add__(self, other: Any) -> Any:
        return 0 + other

    __radd__ = __add__
