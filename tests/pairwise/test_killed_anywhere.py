"""The controller is killed before and after each kind of call to a real API server, once each; every pair is measured
once all the same."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import find_access
from kopt.cluster.client.resources import Object
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.pairwise.main import ProcessSettings, Replica

from .conftest import SPACE, SYSTEM, Pool

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
CALLS = {
    "POST jobs",
    "POST services",
    "GET log",
    "POST nodebandwidths",
    "PATCH nodebandwidths",
    "PUT status",
    "DELETE jobs",
}


class Mortal(Kube):
    """A client that dies before or after a kind of call that no other has died at: nothing is sent any more then."""

    def __init__(self, kubeconfig: Path, met: set[tuple[str, str]]) -> None:
        super().__init__(find_access(kubeconfig, {}))
        self._met, self.dead = met, False
        self.died = asyncio.Event()

    async def request(self, method: str, path: str, **options: Any) -> Object:
        call = call_of(method, path)
        self._perhaps_die("before", call)
        found = await super().request(method, path, **options)
        self._perhaps_die("after", call)
        return found

    async def log(self, *place: Any, **options: Any) -> str:
        self._perhaps_die("before", "GET log")
        found = await super().log(*place, **options)
        self._perhaps_die("after", "GET log")
        return found

    def _perhaps_die(self, when: str, call: str) -> None:
        if not self.dead and call and (when, call) not in self._met:
            self._met.add((when, call))
            self.dead = True
            self.died.set()
        if self.dead:
            raise asyncio.CancelledError


def call_of(method: str, path: str) -> str:
    """The kind of a call; empty for Leases, events and what informers list."""
    if method == "GET" or "/leases" in path or "/events" in path:
        return ""
    parts = path.strip("/").split("/")
    known = [one for one in ("status", "jobs", "services", "nodebandwidths") if one in parts]
    return f"{method} {known[0]}"


async def live(kubeconfig: Path, met: set[tuple[str, str]], identity: str, over: asyncio.Event) -> None:
    """One life of a controller: until it is killed, or everything is over."""
    kube = Mortal(kubeconfig, met)
    lease = LeaseSettings(1.5, 1.0, 0.2)
    settings = ProcessSettings(
        lease=lease, namespace=SYSTEM, tests_namespace=SPACE, identity=identity, port=0, taken_pause_s=1.0
    )
    tasks = [
        asyncio.create_task(Replica(kube, settings).run()),
        asyncio.create_task(kube.died.wait()),
        asyncio.create_task(over.wait()),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    kube.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await kube.close()


@pytest.mark.long
def test_each_pair_is_measured_once_wherever_it_dies(pool: Callable[[int], Pool]) -> None:
    cluster, met = pool(4), set[tuple[str, str]]()
    lives = itertools.count()
    over = threading.Event()

    async def lead() -> None:
        done = asyncio.Event()

        async def watch() -> None:
            await asyncio.to_thread(over.wait)
            done.set()

        watching = asyncio.create_task(watch())
        while not done.is_set():
            await live(cluster.plane.kubeconfig, met, f"life-{next(lives)}", done)
        await watching

    thread = threading.Thread(target=lambda: asyncio.run(lead()))
    thread.start()
    try:
        cluster.start(maxPairsAtOnce=2)
        status = cluster.wait(lambda one: one.get("measured") == 6 and one.get("running") == 0, timeout_s=240)
    finally:
        over.set()
        thread.join()
    assert met == set(itertools.product(("before", "after"), CALLS))
    assert cluster.started() == 6
    assert len(cluster.measured()) == 6
    assert (status["failedPairs"], status["due"]) == (0, 0)
    assert status["budget"]["gpuSeconds"] > 0
