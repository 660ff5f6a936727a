"""Threads that answers are computed on, each within its caller's deadline."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kopt.serving.http.deadline import Deadline

T = TypeVar("T")


class Workers:
    """A thread pool. Work past its deadline still finishes before its thread takes the next."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._free = asyncio.Semaphore(threads)

    async def run(self, deadline: Deadline, work: Callable[..., T], *args: Any) -> T:
        """``work(*args)`` on a thread. Raises TimeoutError past the deadline; the thread goes on."""
        async with asyncio.timeout(deadline.remaining_s()):
            await self._free.acquire()
            running = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
            # Released when the thread is free, which may be after the caller got the fallback.
            running.add_done_callback(self._done)
            return await asyncio.shield(running)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, running: "asyncio.Future[Any]") -> None:
        self._free.release()
        if not running.cancelled():
            # Read, or asyncio reports an error that its caller did not wait for.
            running.exception()
