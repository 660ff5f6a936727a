"""One object whose annotations break what reads them, beside one that nobody has touched: the other goes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from kopt.cluster.client.resources import JOBS, NAMESPACES, Object
from kopt.cluster.runtime.lease import LeaseSettings
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.sizing.main import ProcessSettings, Replica
from kopt.controllers.sizing.ports import SizingSettings
from kopt.core.decision import Mode
from kopt.policies.sizing.profiling_pod import DryRunSettings

from .api_in_memory import MemoryKube

LEASE = LeaseSettings(duration_s=15.0, renew_within_s=10.0, retry_s=0.3)
STATE = '{"phase":"sized","since_s":1,"asked":{},"tries":1e999,"granted_bytes":1,"need_bytes":1,"seen":[],"type":""}'
PATIENCE_S = 60.0


@contextlib.asynccontextmanager
async def running(replica: LedReplica) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(replica.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


async def until(what: Callable[[], Any], task: asyncio.Task[None]) -> None:
    """Waits as long as the controller lives."""
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            if task.done():
                task.result()
                pytest.fail("the controller has ended")
            await asyncio.sleep(0.005)


def job(name: str, **metadata: Any) -> Object:
    container = {
        "name": "train",
        "image": "team/train:1",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": {
            "suspend": False,
            "parallelism": 1,
            "backoffLimit": 6,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
        "status": {},
    }


def team() -> MemoryKube:
    kube = MemoryKube()
    kube.put(
        NAMESPACES,
        {
            "metadata": {
                "name": "team",
                "labels": {"kaiwo.ai/managed": "true"},
                "annotations": {"kaiwo.ai/mode": "enforce"},
            }
        },
    )
    return kube


def sizing(kube: MemoryKube) -> Replica:
    settings = SizingSettings(DryRunSettings("agents"), mode=Mode.ENFORCE)
    return Replica(cast(Any, kube), ProcessSettings(lease=LEASE, sizing=settings, port=0))


def holder(kube: MemoryKube, name: str) -> str:
    found = kube.find(JOBS, name, "team")
    return "" if found is None else str((found["metadata"].get("labels") or {}).get("kaiwo.ai/held", ""))


def failures(replica: LedReplica, reason: str, kind: str = "Job") -> float:
    labels = {"controller": "sizing", "kind": kind, "reason": reason}
    return replica.registry.get_sample_value("kopt_object_errors_total", labels) or 0.0


@pytest.mark.parametrize("held", [False, True])
async def test_a_state_that_overflows_costs_no_other_job_its_dry_run(held: bool) -> None:
    kube = team()
    labels = {"kaiwo.ai/held": "profiling"} if held else {}
    # Before the other, as the leader goes through them in this order.
    kube.put(JOBS, job("a-hostile", annotations={"kaiwo.ai/sizing-state": STATE}, labels=labels))
    kube.put(JOBS, job("b-ordinary"))
    replica = sizing(kube)
    async with running(replica) as task:
        await until(lambda: holder(kube, "b-ordinary") == "profiling", task)
        await until(lambda: "InvalidAnnotation" in kube.events_on("a-hostile"), task)
        assert failures(replica, "InvalidAnnotation") >= 1
        # What was not held by us is left alone; what was goes on from its hold, or nobody would release it.
        assert holder(kube, "a-hostile") == ("profiling" if held else "")


async def test_a_job_whose_state_was_corrected_is_taken_up_again_at_once() -> None:
    kube = team()
    kube.put(JOBS, job("hostile", annotations={"kaiwo.ai/sizing-state": STATE}))
    async with running(sizing(kube)) as task:
        await until(lambda: "InvalidAnnotation" in kube.events_on("hostile"), task)
        kube.put(JOBS, job("hostile"))
        await until(lambda: holder(kube, "hostile") == "profiling", task)


async def test_a_broken_job_is_not_looked_at_in_a_hot_loop() -> None:
    kube = team()
    kube.put(JOBS, job("hostile", annotations={"kaiwo.ai/sizing-state": STATE}))
    replica = sizing(kube)
    async with running(replica) as task:
        await until(lambda: failures(replica, "InvalidAnnotation") >= 2, task)
        seen = failures(replica, "InvalidAnnotation")
        for number in range(20):
            kube.put(JOBS, job(f"other-{number}"))
            await until(lambda number=number: holder(kube, f"other-{number}") == "profiling", task)  # type: ignore[misc]
        # Pauses double: whatever these twenty took, it was met once or twice more at most.
        assert failures(replica, "InvalidAnnotation") <= seen + 5


async def test_a_forged_mark_of_a_later_term_ends_nobodys_term() -> None:
    kube = team()
    kube.put(JOBS, job("a-hostile", annotations={"kaiwo.ai/term": "kopt-system/kopt-sizing/99999999999999"}))
    kube.put(JOBS, job("b-ordinary"))
    async with running(sizing(kube)) as task:
        await until(lambda: holder(kube, "b-ordinary") == "profiling", task)
        # The next renewal shows that there is no such term; then the mark counts for nothing.
        await until(lambda: holder(kube, "a-hostile") == "profiling", task)
