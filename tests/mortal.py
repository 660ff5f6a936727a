"""Controllers that are killed before and after each kind of write to a real API server, once each.

async def live(over: asyncio.Event, number: int) -> None:
    kube = Mortal(kubeconfig, met, call_of)
    await until_killed(kube, Replica(kube, settings).run(), over)

with lives(live):
    ...
"""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import find_access
from kopt.cluster.client.resources import Object

Met = set[tuple[str, str]]
"""Deaths so far: ("before" or "after", the kind of write)."""
CallOf = Callable[[str, str, Any], str]
"""The kind of a request that is no dry run, by method, path and body; empty for those that nobody dies at."""


class Mortal(Kube):
    """A client that dies before or after a kind of write that no other has died at: nothing is sent any more then.

    ``writes`` counts kinds by the name of their object; lives may share it.
    """

    def __init__(
        self, kubeconfig: Path, met: Met, call_of: CallOf, writes: Counter[tuple[str, str]] | None = None
    ) -> None:
        super().__init__(find_access(kubeconfig, {}))
        self._met, self._call_of, self.dead = met, call_of, False
        self.writes = Counter[tuple[str, str]]() if writes is None else writes
        self.died = asyncio.Event()

    async def request(self, method: str, path: str, **options: Any) -> Object:
        is_tried = "dryRun" in (options.get("query") or {})
        call = "" if is_tried else self._call_of(method, path, options.get("body"))
        self._perhaps_die("before", call)
        found = await super().request(method, path, **options)
        if call:
            self.writes[call, path.rpartition("/")[2]] += 1
        self._perhaps_die("after", call)
        return found

    def _perhaps_die(self, when: str, call: str) -> None:
        if not self.dead and call and (when, call) not in self._met:
            self._met.add((when, call))
            self.dead = True
            self.died.set()
        if self.dead:
            raise asyncio.CancelledError


async def until_killed(kube: Mortal, work: Coroutine[Any, Any, None], over: asyncio.Event) -> None:
    """One life: until its client dies, or everything is over."""
    tasks = [asyncio.create_task(one) for one in (work, kube.died.wait(), over.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    kube.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await kube.close()


@contextmanager
def lives(live: Callable[[asyncio.Event, int], Awaitable[None]]) -> Iterator[None]:
    """One life after the other, in a thread, while the block runs; each gets its number."""
    over = threading.Event()

    async def lead() -> None:
        done = asyncio.Event()
        watching = asyncio.create_task(asyncio.to_thread(over.wait))
        watching.add_done_callback(lambda _: done.set())
        for number in itertools.count():
            if done.is_set():
                return
            await live(done, number)

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
