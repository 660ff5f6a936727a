"""What the scheduler, the API server and people ask about objects on which somebody has written what they like: an
answer that is no fault of ours, and the right one about the ordinary object."""

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Callable
from typing import Any, cast

import orjson
import pytest
from admission.workloads import every_kind, review
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.admission.address import Address
from kopt.cluster.client.resources import (
    CONFORMANCE_POLICIES,
    GPU_WORKLOADS,
    JOBS,
    KUEUE_WORKLOADS,
    LEASES,
    NODES,
    PODS,
    Object,
)
from kopt.cluster.runtime.http import Reply, Request
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.metrics import WebhookMetrics
from kopt.controllers.admission.server import ServerSettings as WebhookServerSettings
from kopt.controllers.admission.server import WebhookServer
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.controllers.admission.state import LiveState
from kopt.controllers.extender.calls.server import ServerSettings
from kopt.controllers.extender.leadership import LeadershipSettings
from kopt.controllers.extender.main import ProcessSettings, Replica
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.overview.collect import gather
from kopt.controllers.overview.reading import Reader, Wanted
from kopt.controllers.overview.why import why
from kopt.controllers.preemption import main as preemption
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.controllers.preemption.workload_hold import HoldSettings
from kopt.controllers.sizing.admission import SizingAtAdmission
from kopt.controllers.staging.admission import StagingAtAdmission
from kopt.core.decision import Mode
from kopt.core.times import stamp

from .api_in_memory import MemoryKube
from .hostile import KEYS, OURS, hostile
from .hostile import put as placed_at
from .scenarios import asked
from .scenarios.examples import EXAMPLES
from .scenarios.objects import LEASE, SPACE, Host, job, node, pod, space
from .scenarios.preemption import KAI, KUEUE, fill_kai, fill_kueue
from .test_hostile_objects import PATIENCE_S, Drawn, some

FEW, MANY = 8, int(os.environ.get("KOPT_ATTACK_EXAMPLES", "1500"))
FAULTS = "kopt.controllers"


def put(kube: MemoryKube, objects: Drawn) -> list[Object]:
    made = []
    for host, document in objects:
        names = {key: host.base["metadata"][key] for key in ("name", "namespace") if key in host.base["metadata"]}
        made.append(kube.put(host.resource, document | {"metadata": document["metadata"] | names}))
    return made


class Faults(logging.Handler):
    """What was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> "Faults":
        logging.getLogger(FAULTS).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(FAULTS).removeHandler(self)


async def answered(reply: Any) -> Reply:
    return cast(Reply, await reply if inspect.isawaitable(reply) else reply)


async def until(what: Callable[[], Any], *tasks: asyncio.Task[Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def extends(objects: Drawn) -> None:
    kube = MemoryKube()
    space(kube, "team", "tenant")
    kube.put(NODES, node("n0"))
    made = put(kube, objects)
    wanted = ProcessSettings(
        extender=ExtenderSettings(Mode.ENFORCE),
        server=ServerSettings(port=0, drain_s=0),
        leadership=LeadershipSettings(identity="one", lease=LEASE),
        upkeep_s=0.01,
    )
    replica = Replica(cast(Any, kube), wanted)
    task = asyncio.create_task(replica.run())
    try:
        await until(lambda: replica.serves, task)
        server = replica.server
        with Faults() as faults:
            for number, document in enumerate([*made, pod("ordinary", gpus=1)]):
                document["metadata"].setdefault("uid", f"offered-{number}")
                body = orjson.dumps({"Pod": document, "Nodes": None, "NodeNames": ["n0"]})
                for verb in ("filter", "prioritize"):
                    reply = await answered(server._answer(Request("POST", f"/{verb}", body)))
                    assert reply.status in (200, 400), reply.body
            assert faults.found == []
        # What was drawn may have taken the GPUs of its own node; this one is nobody else's.
        assert orjson.loads((await answered(server._answer(Request("POST", "/filter", body)))).body)["NodeNames"] == [
            "n0"
        ]
        await asyncio.sleep(0.03)
        assert not task.done()
    finally:
        await end(task)
        await replica.server.stop()
        replica.close()


async def reviews(workload: Object, operation: str, policies: Drawn) -> None:
    """No review fails: one that did would be let through whatever the policy says."""
    kube = MemoryKube()
    space(kube, "team")
    put(kube, policies)
    now = stamp(time.time() + 3600)
    for name in ("kopt-sizing", "kopt-staging"):
        spec = {"holderIdentity": "x", "renewTime": now, "leaseDurationSeconds": 15}
        kube.put(LEASES, {"metadata": {"name": name, "namespace": "kopt-system"}, "spec": spec})
    view = LiveState(cast(Any, kube))
    sizes, data = (one(cast(Any, kube), "kopt-system") for one in (SizingAtAdmission, StagingAtAdmission))
    tasks = [asyncio.create_task(one.run()) for one in (view, sizes, data)]
    try:
        await until(lambda: view.ready and sizes.controller_lives and data.controller_lives, *tasks)
        admissions, metrics = Admissions(view, SizingCache(None), view, sizes, data), WebhookMetrics()
        server = WebhookServer(admissions, cast(Any, None), WebhookServerSettings(), metrics)
        with Faults() as faults:
            for path in ("/mutate", "/validate"):
                body = orjson.dumps(review(workload, operation=operation, oldObject=workload))
                reply = await answered(server._review(Request("POST", path, body)))
                assert reply.status == 200
            assert faults.found == []
        assert not any(task.done() for task in tasks)
    finally:
        await end(*tasks)


async def holds(objects: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preemption controller's webhook: a review that failed would let Kueue or KAI go by their own rules."""
    kube = MemoryKube()
    fill_kueue(kube)
    fill_kai(kube)
    made = put(kube, objects)
    hold = HoldSettings(Address("kopt-system", "kopt"), ("x",))
    wanted = preemption.ProcessSettings(
        lease=LEASE, controller=ControllerSettings(Mode.ENFORCE), hold=hold, plain_pods=True, kai=True, port=0
    )
    replica = preemption.Replica(cast(Any, kube), wanted)
    tasks = [asyncio.create_task(one.run()) for one in replica._informers]
    holding = replica._holding
    assert holding is not None
    monkeypatch.setattr(holding, "_led", lambda: True)
    try:
        await until(lambda: all(one.synced.is_set() for one in replica._informers), *tasks)
        with Faults() as faults:
            for document, (host, _) in zip(made, objects, strict=True):
                path = "/hold" if host.resource == KUEUE_WORKLOADS else "/gate"
                found = {"apiVersion": host.resource.api_version, "kind": host.resource.kind} | document
                body = orjson.dumps(review(found, namespace="tenant", operation="CREATE"))
                assert (await answered(holding._review(Request("POST", path, body)))).status == 200
            assert faults.found == []
    finally:
        await end(*tasks)


async def tells(objects: Drawn) -> None:
    """`kopt why` and `kopt queue`, and the pages that show the same."""
    kube = MemoryKube()
    fill_kueue(kube)
    kube.put(JOBS, job("urgent") | {"metadata": job("urgent")["metadata"] | {"uid": "job-urgent"}})
    put(kube, objects)
    facts = await gather(cast(Any, kube), Wanted("urgent", "team", "job"))
    assert why(facts).summary
    lines = await Reader(cast(Any, kube)).lines()
    queued = lines.queued(kube.all(PODS), now_s=time.time())
    assert "team/urgent" in {one.full_name for one in queued}
    for host, _ in objects:
        if host.resource in (JOBS, KUEUE_WORKLOADS):
            found = await gather(cast(Any, kube), Wanted(host.base["metadata"]["name"], "tenant", host.resource.kind))
            assert why(found).summary


def workloads() -> st.SearchStrategy[Object]:
    def of(base: Object) -> st.SearchStrategy[Object]:
        base["metadata"] |= {"annotations": {}, "labels": {}}
        names = {"name": base["metadata"]["name"], "namespace": "team"}
        drawn = hostile(base, EXAMPLES, [*OURS, *OURS, *KEYS])
        return drawn.map(lambda document: document | {"metadata": document["metadata"] | names})

    return st.sampled_from(every_kind("w")).flatmap(of)


def policies() -> st.SearchStrategy[Drawn]:
    host = Host(CONFORMANCE_POLICIES, asked.POLICY, schema="conformancepolicies")
    return st.one_of(st.just([(host, asked.POLICY)]), some((host, SPACE), 2))


def extender(examples: int, most: int) -> None:
    @settings(max_examples=examples)
    @given(some(asked.EXTENDER_HOSTS, most))
    def holds_(objects: Drawn) -> None:
        asyncio.run(extends(objects))

    holds_()


def webhook(examples: int) -> None:
    @settings(max_examples=examples)
    @given(workloads(), st.sampled_from(["CREATE", "UPDATE"]), policies())
    def holds_(workload: Object, operation: str, written: Drawn) -> None:
        asyncio.run(reviews(workload, operation, written))

    holds_()


REVIEWED = tuple(one for one in (*KUEUE.hosts, *KAI.hosts) if one.resource in (KUEUE_WORKLOADS, PODS))


def preemption_webhook(examples: int, most: int) -> None:
    @settings(max_examples=examples)
    @given(some(REVIEWED, most))
    def holds_(objects: Drawn) -> None:
        with pytest.MonkeyPatch.context() as patched:
            asyncio.run(holds(objects, patched))

    holds_()


def overview(examples: int, most: int) -> None:
    @settings(max_examples=examples)
    @given(some(asked.OVERVIEW_HOSTS, most))
    def holds_(objects: Drawn) -> None:
        asyncio.run(tells(objects))

    holds_()


def test_the_scheduler_is_answered_whatever_stands_on_pods_and_nodes() -> None:
    extender(FEW, 3)


@pytest.mark.parametrize("amount", ["1e999", "inf", "1" * 400])
def test_a_wish_that_overflows_does_not_end_the_extender(amount: str) -> None:
    host = next(host for host in asked.EXTENDER_HOSTS if host.resource == GPU_WORKLOADS)
    asyncio.run(extends([(host, placed_at(host.base, ("spec", "gpuRequirements", "minMemoryGB"), amount))]))


def test_no_review_of_the_webhook_fails() -> None:
    webhook(30)


def test_no_review_of_the_preemption_webhook_fails() -> None:
    preemption_webhook(FEW, 3)


def test_people_are_told_of_their_job_whatever_stands_on_others() -> None:
    overview(FEW, 3)


@pytest.mark.thorough
def test_the_scheduler_is_answered_in_very_many_cases() -> None:
    extender(MANY, 6)


@pytest.mark.thorough
def test_very_many_reviews_of_the_webhook_do_not_fail() -> None:
    webhook(5 * MANY)


@pytest.mark.thorough
def test_very_many_reviews_of_the_preemption_webhook_do_not_fail() -> None:
    preemption_webhook(MANY, 6)


@pytest.mark.thorough
def test_people_are_told_of_their_job_in_very_many_cases() -> None:
    overview(MANY, 6)
