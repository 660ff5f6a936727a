"""Claim templates whose process ended before their workload was seen, and those whose workload never came."""

import asyncio
from typing import Any, cast

from attacks.api_in_memory import MemoryKube

from kopt.cluster.client.resources import DEPLOYMENTS, EVENTS, Object
from kopt.cluster.runtime.events import EventRecorder
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES
from kopt.cluster.workloads.shares.writing import SHARE_LABEL, claim_template
from kopt.cluster.workloads.workload import read_workload
from kopt.controllers.admission.shares.claims import PATIENCE_S, ShareClaims, resource_word
from kopt.formats.share_terms import ShareForm

WORD = "a1b2c3"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def template(name: str = "share-0", word: str = WORD) -> Object:
    return claim_template(name, "team", word, resource_word(DEPLOYMENTS), ShareForm({}, claim={"requests": []}))


def deployment() -> Object:
    metadata = {"name": "serve", "namespace": "team", "uid": "u-1", "labels": {SHARE_LABEL: WORD}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {}}


def claims_on(kube: MemoryKube, clock: Clock) -> tuple[ShareClaims, EventRecorder]:
    events = EventRecorder(cast(Any, kube), "kaiwo.ai/webhook", "one")
    return ShareClaims(cast(Any, kube), events, clock), events


def owners(kube: MemoryKube) -> list[Any]:
    stored = kube.all(CLAIM_TEMPLATES)
    return [item["metadata"].get("ownerReferences") for item in stored]


async def test_a_new_process_finds_the_owner_of_what_an_earlier_one_created() -> None:
    kube = MemoryKube()
    assert await claims_on(kube, Clock())[0].create([template()])
    made = kube.put(DEPLOYMENTS, deployment())
    later, _ = claims_on(kube, Clock())
    task = asyncio.create_task(later.run())
    async with asyncio.timeout(30):
        while owners(kube) == [None]:
            await asyncio.sleep(0.01)
    task.cancel()
    (owner,) = owners(kube)[0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Deployment", "serve", made["metadata"]["uid"])


async def test_what_never_came_leaves_no_template() -> None:
    kube, clock = MemoryKube(), Clock()
    claims, _ = claims_on(kube, clock)
    assert await claims.create([template(), template("other", "d4e5f6")])
    workload = read_workload(deployment(), "apps", "Deployment", "team", "serve")
    assert workload is not None
    claims.written(workload, WORD, "given by dra")
    await claims.settle()
    assert len(owners(kube)) == 2, "it may still come"
    clock.now_s = PATIENCE_S + 1
    await claims.settle()
    assert len(owners(kube)) == 1, "the other's is not ours to delete"


async def test_the_event_names_the_workload_as_it_is() -> None:
    kube = MemoryKube()
    claims, events = claims_on(kube, Clock())
    made = kube.put(DEPLOYMENTS, deployment())
    workload = read_workload(made, "apps", "Deployment", "team", "serve")
    assert workload is not None
    claims.written(workload, WORD, "0.25 of a GPU: given by kai on 1 node that it may use.")
    await claims.settle()
    await events.flush()
    (event,) = kube.all(EVENTS)
    assert event["regarding"]["uid"] == made["metadata"]["uid"]
    assert (event["reason"], event["note"]) == (
        "GpuShareWritten",
        "0.25 of a GPU: given by kai on 1 node that it may use.",
    )
