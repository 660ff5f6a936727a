"""Threads that answers are computed on, each within its caller's deadline."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from kopt.core.reason import Reason

T = TypeVar("T")


@dataclass(frozen=True)
class Deadline:
    """When the caller stops waiting, on the monotonic clock."""

    at_s: float
    given_s: float

    def left_s(self) -> float:
        return self.at_s - time.monotonic()

    def within(self, milliseconds: float | None) -> "Deadline":
        """The same from the same moment on, but no later than after so long."""
        if milliseconds is None or milliseconds / 1000 >= self.given_s:
            return self
        given_s = milliseconds / 1000
        return Deadline(self.at_s - self.given_s + given_s, given_s)

    @property
    def reason(self) -> Reason:
        text = f"The caller's deadline of {self.given_s * 1000:g} ms passed before the model could answer."
        return Reason("DEADLINE", text, {"deadline_ms": self.given_s * 1000})


class Workers:
    """A few threads; work that nobody waits for any more is finished before the next is begun."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)

    async def run(self, deadline: Deadline, work: Callable[..., T], *args: Any) -> T:
        """``work(*args)`` on a thread. Raises TimeoutError past the deadline; the thread goes on."""
        async with asyncio.timeout(deadline.left_s()):
            await self._free.acquire()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
            # Freed when the thread is, which may be after the caller has left with the fallback.
            running.add_done_callback(self._done)
            return await asyncio.shield(running)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, running: "asyncio.Future[Any]") -> None:
        self._free.release()
        if not running.cancelled():
            # Read, or asyncio reports an error that its caller did not wait for.
            running.exception()
