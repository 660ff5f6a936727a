"""Looks at the files of checkpoints again and again, and tells the endpoint what has changed.

A file system may stall for hours (NFS). Looks run in threads of their own that end with the process; one that hangs
holds up no other for long, and what it looks at is looked at again when it has come back. There is no inotify here: to
ask for notices of a folder blocks as well, and the endpoint waits ten seconds for a checkpoint to rest anyway.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.agents.logtail.checkpoints import Item, listing
from kopt.agents.logtail.claims import Claim, NodeClaims
from kopt.agents.logtail.jobs import Jobs
from kopt.agents.logtail.pods import FollowedPod
from kopt.agents.logtail.volumes import PodVolumes

_LOG = logging.getLogger(__name__)
_AT_ONCE, _MOST_THREADS = 4, 24


@dataclass(frozen=True)
class WatchSettings:
    """Times in seconds."""

    observe_s: float = 5.0
    """From the end of one look to the next."""
    confirm_s: float = 30.0
    """The endpoint hears this often that nothing has changed; after two minutes it would believe it no longer."""
    settle_s: float = 10.0
    """The same soon after a change: what was written is whole once it has rested under somebody's eyes."""
    claims_s: float = 300.0
    """From one look at a pod's claims to the next."""
    repeat_s: float = 300.0
    """It gets everything again after so long: it may have lost it."""
    patience_s: float = 30.0
    """A look that takes longer hangs."""


class Threads:
    """Runs calls that a stalled file system may never end: a few at once, besides those that hang."""

    def __init__(self, patience_s: float = WatchSettings.patience_s) -> None:
        self._patience_s, self._running = patience_s, 0
        self._turns, self._ended = asyncio.Semaphore(_AT_ONCE), asyncio.Event()

    async def call(self, work: Callable[[], list[Item]], what: str) -> list[Item]:
        """The work's result, or what it raises. ``what`` it is about is logged where it hangs."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[list[Item]] = loop.create_future()

        def run() -> None:
            try:
                items, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - whoever waits gets it
                items, error = [], raised
            # The process may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end, items, error)

        def end(items: list[Item], error: BaseException | None) -> None:
            self._running -= 1
            self._ended.set()
            if result.done():
                return
            result.set_result(items) if error is None else result.set_exception(error)

        async with self._turns:
            while self._running >= _MOST_THREADS:
                self._ended.clear()
                await self._ended.wait()
            threading.Thread(target=run, name=f"files of {what}", daemon=True).start()
            self._running += 1
            await asyncio.wait({result}, timeout=self._patience_s)
        if not result.done():
            _LOG.warning("%s: the file system does not answer; its files count again when it does", what)
        return await result


async def watch_folder(jobs: Jobs, job: str, folder: Path, settings: WatchSettings | None = None) -> None:
    """Send what lies in the checkpoint folder of a job, until cancelled."""
    settings = settings or WatchSettings()
    threads = Threads(settings.patience_s)

    def send(items: list[Item] | None, at_s: float) -> None:
        jobs.attach(job, {"files_at": at_s} if items is None else {"files": items, "files_at": at_s})

    await _report(lambda: threads.call(lambda: listing(folder), str(folder)), send, settings, None)


class VolumeWatch:
    """Of the pods of a node, whose volumes the kubelet keeps below ``root``."""

    def __init__(
        self, jobs: Jobs, root: Path, settings: WatchSettings | None = None, claims: NodeClaims | None = None
    ) -> None:
        self._jobs, self._root, self._settings, self.claims = jobs, root, settings or WatchSettings(), claims
        self._threads, self._absence_logged = Threads(self._settings.patience_s), False

    async def watch(self, pod: FollowedPod) -> None:
        """Send what lies in the checkpoint folders of a pod's volumes, until cancelled."""
        volumes, name = PodVolumes(self._root, pod.uid, ephemeral=pod.ephemeral), "/".join(pod.key)

        claims, read_at_s = tuple[Claim, ...](), float("-inf")

        async def exclusive() -> frozenset[str]:
            nonlocal claims, read_at_s
            if self.claims is None:
                return frozenset()
            if time.monotonic() - read_at_s >= self._settings.claims_s:
                claims, read_at_s = await self.claims.read(pod), time.monotonic()
            return self.claims.exclusive(pod, claims)

        async def observe() -> list[Item]:
            own = await exclusive()
            items = await self._threads.call(lambda: volumes.observe(time.time(), own), name)
            if volumes.absent and not self._absence_logged:
                self._absence_logged = True
                _LOG.warning(
                    "%s has no folder in %s: the kubelet keeps its pods elsewhere (--volumes)", name, self._root
                )
            return items

        def send(items: list[Item] | None, at_s: float) -> None:
            changed: dict[str, Any] = {} if items is None else {"files": items}
            self._jobs.attach(pod.job, {"listings": [{"by": pod.uid, "at": at_s, **changed}]})

        await _report(observe, send, self._settings, [])


async def _report(
    observe: Callable[[], Awaitable[list[Item]]],
    send: Callable[[list[Item] | None, float], None],
    settings: WatchSettings,
    before: list[Item] | None,
) -> None:
    """Send what lies there whenever it has changed since ``before``, and now and then that it has not (None)."""
    sent_at_s = whole_at_s = 0.0
    while True:
        at_s = time.time()
        items = await observe()
        if items != before or (items and at_s - whole_at_s >= settings.repeat_s):
            send(items, at_s)
            before, sent_at_s, whole_at_s = items, at_s, at_s
        elif items and at_s - sent_at_s >= _confirm_s(settings, at_s - whole_at_s):
            send(None, at_s)
            sent_at_s = at_s
        await asyncio.sleep(settings.observe_s)


def _confirm_s(settings: WatchSettings, since_change_s: float) -> float:
    soon = since_change_s < settings.confirm_s + settings.settle_s
    return min(settings.settle_s, settings.confirm_s) if soon else settings.confirm_s
