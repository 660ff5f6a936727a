"""A controller that is killed at its calls to the API server, in the middle of whatever it was doing."""

import asyncio
import json
from pathlib import Path
from typing import Any

from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import find_access
from kopt.cluster.client.resources import Object
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.controllers.sizing.main import ProcessSettings, Replica
from kopt.controllers.sizing.ports import SizingSettings
from kopt.policies.sizing.profiling import ProfilingSettings
from kopt.policies.sizing.profiling_pod import DryRunSettings

from .conftest import SYSTEM

WRITES = {"POST", "PATCH", "PUT", "DELETE"}


class Fate:
    """Which calls have killed a controller: each kind of call does so once before it is sent and once right after.

    A kind is the method, the object, and for a Job what is remembered with the write: so the release after the first
    try is another than that after the second.
    """

    def __init__(self, only: str = "") -> None:
        self.met: list[tuple[str, str]] = []
        self._only = only

    def strikes(self, when: str, call: str) -> bool:
        if (when, call) in self.met or self._only not in call:
            return False
        self.met.append((when, call))
        return True


class Mortal(Kube):
    """A client that dies as its fate says: nothing is sent any more then, not even to give the Lease back."""

    def __init__(self, kubeconfig: Path, fate: Fate) -> None:
        super().__init__(find_access(kubeconfig, {}))
        self.fate, self.dead = fate, False
        self.died = asyncio.Event()

    async def request(self, method: str, path: str, **options: Any) -> Object:
        call = call_of(method, path, options.get("body"))
        await self._perhaps_die("before", call)
        found = await super().request(method, path, **options)
        await self._perhaps_die("after", call)
        return found

    async def log(self, *place: Any, **options: Any) -> str:
        call = f"GET log of {place[1]}"
        await self._perhaps_die("before", call)
        found = await super().log(*place, **options)
        await self._perhaps_die("after", call)
        return found

    async def _perhaps_die(self, when: str, call: str) -> None:
        if not self.dead and call and self.fate.strikes(when, call):
            self.dead = True
            self.died.set()
        if self.dead:
            raise asyncio.CancelledError


def call_of(method: str, path: str, body: Any) -> str:
    """The kind of a call; empty for those that decide nothing: Leases, events, and what informers list."""
    if "/leases" in path or "/events" in path or (method not in WRITES and "kueue" not in path):
        return ""
    notes = (body.get("metadata") or {}).get("annotations") or {} if isinstance(body, dict) else {}
    state = json.loads(notes.get("kaiwo.ai/sizing-state", "{}"))
    return " ".join([method, path.rpartition("/")[2], *(str(state[name]) for name in ("phase", "tries") if state)])


def settings(identity: str) -> ProcessSettings:
    dry_run = DryRunSettings("kopt-agents:test", "", 20.0, 60.0, 0.02)
    policy = ProfilingSettings(duration_s=20.0, budget_s=300.0)
    lease = LeaseSettings(1.5, 1.0, 0.2)
    sizing = SizingSettings(dry_run, policy)
    return ProcessSettings(sizing=sizing, lease=lease, namespace=SYSTEM, identity=identity, port=0)


async def live(kubeconfig: Path, fate: Fate, identity: str, over: asyncio.Event) -> None:
    """One life of a controller: until it is killed, or everything is over."""
    kube = Mortal(kubeconfig, fate)
    tasks = [
        asyncio.create_task(Replica(kube, settings(identity)).run()),
        asyncio.create_task(kube.died.wait()),
        asyncio.create_task(over.wait()),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    kube.dead = True
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await kube.close()
