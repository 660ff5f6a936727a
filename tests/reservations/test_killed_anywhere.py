"""A leader that dies after any of its writes: the next one goes on from there, and nothing is done twice."""

import asyncio
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from switches.scenarios import RESERVATIONS

from kopt.cluster.client.resources import (
    EVENTS,
    JOBS,
    KAIWO_RESERVATIONS,
    KUEUE_WORKLOADS,
    LEASES,
    SECRETS,
    Object,
    Resource,
)

UNCOUNTED = (EVENTS, LEASES, SECRETS)
WRITES = 5
"""Three Jobs, a hold, and a status."""
PATIENCE_S = 60.0


class Mortal(MemoryKube):
    """Its client hangs for ever after ``last`` writes, once the last is done."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.written, self.died = 0, list[str](), asyncio.Event()

    async def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        return await self._counted(resource, "create", await super().create(resource, body, namespace, dry_run=dry_run))

    async def patch(self, resource: Resource, *args: Any, **options: Any) -> Object:
        return await self._counted(resource, "patch", await super().patch(resource, *args, **options))

    async def replace(self, resource: Resource, *args: Any, **options: Any) -> Object:
        return await self._counted(resource, "replace", await super().replace(resource, *args, **options))

    async def delete(self, resource: Resource, *args: Any, **options: Any) -> Object:
        return await self._counted(resource, "delete", await super().delete(resource, *args, **options))

    async def _counted(self, resource: Resource, verb: str, answer: Object) -> Object:
        if resource not in UNCOUNTED:
            self.written.append(f"{verb} {resource.plural}")
            if len(self.written) == self.last:
                self.died.set()
                await asyncio.Future()
        return answer


@pytest.mark.parametrize("last", range(1, WRITES + 1))
def test_the_next_leader_goes_on(last: int) -> None:
    asyncio.run(_two_lives(last))


async def _two_lives(last: int) -> None:
    kube = Mortal()
    RESERVATIONS.fill(kube)
    kube.last = last
    await _lives(kube, lambda: kube.died.is_set())
    assert len(kube.written) == last
    kube.last = -1
    await _lives(kube, lambda: RESERVATIONS.handled(kube) and _account(kube).get("reclaimed") is not None)
    assert len(kube.all(JOBS)) == 3
    assert len({job["metadata"]["name"] for job in kube.all(JOBS)}) == 3
    assert kube.written.count("create jobs") == 3
    assert kube.written.count("delete jobs") == 0
    assert kube.written.count("patch workloads") == 1
    (workload,) = kube.all(KUEUE_WORKLOADS)
    assert workload["spec"]["active"] is False
    assert {"kaiwo.ai/evicting", "kaiwo.ai/held-undo"} <= set(workload["metadata"]["annotations"])


def _account(kube: Mortal) -> Object:
    (reservation,) = kube.all(KAIWO_RESERVATIONS)
    return dict((reservation.get("status") or {}).get("account") or {})


async def _lives(kube: Mortal, is_done: Any) -> None:
    replica = RESERVATIONS.start(kube)
    task = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not is_done():
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()
