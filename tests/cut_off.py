"""A proxy between a process and the API server, for tests that cut the way between them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.faults import FaultProxy, proxied


class Way:
    """``kubeconfig`` leads through the proxy."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxy: FaultProxy, kubeconfig: Path) -> None:
        self._loop, self._proxy, self.kubeconfig = loop, proxy, kubeconfig

    def close(self) -> None:
        """What goes on breaks off, and nothing new comes through."""
        self._call(self._proxy.refuse)
        self._call(self._proxy.cut)

    def open(self) -> None:
        self._call(lambda: self._proxy.refuse(False))

    def _call(self, what: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(what)


@contextlib.contextmanager
def way_to(kubeconfig: Path, folder: Path) -> Iterator[Way]:
    """The proxy runs in a thread of its own while the block does."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    context = proxied(kubeconfig, folder)
    proxy, through = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(20)
    try:
        yield Way(loop, proxy, through)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(20)
        asyncio.run_coroutine_threadsafe(_end_others(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)


async def _end_others() -> None:
    """What still waits for connections that were cut."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
