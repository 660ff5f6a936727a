"""Wakes who follows a file when something happened to it: inotify where it reaches, and a look now and then everywhere.

Network file systems tell of no writer on another machine, and the kernel limits how many folders are watched.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inotify_simple import INotify

_LOG = logging.getLogger(__name__)
_SWEEP_S = 5.0
_SWEEP_ALONE_S = 0.5


class Notices:
    """``wait`` until something may have happened to a path. One per process, ``run`` beside the work."""

    def __init__(self, *, sweep_s: float | None = None, inotify: bool = True) -> None:
        self._events: dict[tuple[Path, str], set[asyncio.Event]] = defaultdict(set)
        self._folders: dict[Path, int] = {}
        self._by_watch: dict[int, Path] = {}
        self._inotify = _open() if inotify else None
        self._sweep_s = sweep_s or (_SWEEP_ALONE_S if self._inotify is None else _SWEEP_S)

    def subscribe(self, path: Path, event: asyncio.Event, *, whole: bool = False) -> None:
        """Set the event when a path may have changed, or its folder's content; ``whole``: the path is the folder."""
        folder, name = (path, "") if whole else (path.parent, path.name)
        self._events[folder, name].add(event)
        self._watch(folder)

    def unsubscribe(self, path: Path, event: asyncio.Event, *, whole: bool = False) -> None:
        """Ends a subscription of the same arguments."""
        key = (path, "") if whole else (path.parent, path.name)
        self._events[key].discard(event)
        if not self._events[key]:
            del self._events[key]
        if not any(folder == key[0] for folder, _ in self._events):
            self._forget(key[0])

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        if self._inotify is not None:
            loop.add_reader(self._inotify.fileno(), self._read)
        try:
            while True:
                await asyncio.sleep(self._sweep_s)
                self.sweep()
        finally:
            if self._inotify is not None:
                loop.remove_reader(self._inotify.fileno())

    def sweep(self) -> None:
        """Wake everybody, and watch folders that were not there before."""
        for folder in {folder for folder, _ in self._events}:
            self._watch(folder)
        for events in list(self._events.values()):
            for event in events:
                event.set()

    def _watch(self, folder: Path) -> None:
        if self._inotify is None or folder in self._folders:
            return
        from inotify_simple import flags

        mask = flags.MODIFY | flags.CREATE | flags.MOVED_TO | flags.MOVED_FROM | flags.DELETE | flags.CLOSE_WRITE
        try:
            watch = self._inotify.add_watch(str(folder), mask | flags.ONLYDIR)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                _LOG.debug("%s is looked at every %g s only: %s", folder, self._sweep_s, error)
            return
        self._folders[folder], self._by_watch[watch] = watch, folder

    def _forget(self, folder: Path) -> None:
        watch = self._folders.pop(folder, None)
        if watch is not None and self._inotify is not None:
            self._by_watch.pop(watch, None)
            with contextlib.suppress(OSError):
                self._inotify.rm_watch(watch)

    def _read(self) -> None:
        from inotify_simple import flags

        assert self._inotify is not None
        for watch, mask, _, name in self._inotify.read(timeout=0):
            if mask & flags.Q_OVERFLOW:
                self.sweep()
                continue
            folder = self._by_watch.get(watch)
            if folder is None:
                continue
            if mask & flags.IGNORED:
                self._by_watch.pop(watch, None)
                self._folders.pop(folder, None)
            for event in (*self._events.get((folder, name), ()), *self._events.get((folder, ""), ())):
                event.set()


def _open() -> "INotify | None":
    try:
        from inotify_simple import INotify
    except (ImportError, OSError):
        return None
    try:
        return INotify(nonblocking=True)
    except OSError as error:
        _LOG.warning("no inotify here (%s): files are looked at every %g s", error, _SWEEP_ALONE_S)
        return None
