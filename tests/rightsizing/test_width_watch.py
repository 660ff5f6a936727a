"""A width is changed when that is safe, watched from where the job is back, and kept or put back: in memory."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import job, node, notes, owner, pod

from kopt.cli.errors import Refused
from kopt.cli.rightsize.apply import ApplySettings
from kopt.cli.rightsize.width_watch import WidthApplySettings, apply_width, select_width
from kopt.cli.rightsize.widths import WidthCandidate, read_widths
from kopt.cluster.client.api import Patch
from kopt.cluster.client.errors import Invalid
from kopt.cluster.client.resources import JOBS, NODES, PODS, RESOURCE_QUOTAS, Object
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.progress import PROGRESS, PROGRESS_AT, STEP_SECONDS
from kopt.cluster.objects.resize_history import widths_of
from kopt.cluster.workloads.resizing.elastic import ELASTIC_BATCH, ELASTIC_WIDTH
from kopt.core.reason import Reason
from kopt.core.times import stamp
from kopt.core.workload.rightsizing import Outcome
from kopt.policies.rightsizing.watch import Action, Decision, WatchSettings
from kopt.policies.rightsizing.width import WidthProposal

pytestmark = pytest.mark.long
SETTINGS = WidthApplySettings(
    ApplySettings(
        WatchSettings(
            window_s=1.0, least_s=0.5, deadline_s=3.0, sample_s=0.04, baseline_s=2.0, least_samples=6, pauses=1.0
        ),
        accept_s=0.4,
        poll_s=0.03,
        undo_s=1.0,
    ),
    least_back_s=0.8,
    settle_s=5.0,
)
STEP_S = 0.01


class Kube(MemoryKube):
    """With patches of operations, as a job's width is written; ``writes`` are the kinds of patches of jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    async def patch(
        self, resource: Any, name: str, changes: Object | Sequence[Object], namespace: str = "", **more: Any
    ) -> Object:
        if resource == JOBS and not more.get("dry_run"):
            self.writes.append("width" if more.get("kind") is Patch.JSON else "record")
        if more.get("kind") is not Patch.JSON:
            return await super().patch(resource, name, changes, namespace, **more)
        document = await self.get(resource, name, namespace)
        for operation in changes:
            *path, last = operation["path"].strip("/").split("/")
            place = at(document, *path)
            if operation["op"] == "test" and place[last] != operation["value"]:
                raise Invalid(422, "Invalid", "the test failed")
            place[last] = operation["value"]
        return document if more.get("dry_run") else self.put(resource, document)


@dataclass
class Training:
    """An elastic job of up to four workers, its Job controller, kubelets and log agent. It saves every twenty steps."""

    kube: Kube = field(default_factory=Kube)
    slower: float = 1.0
    """With more than two workers."""
    stops: bool = False
    """With more than two workers it never goes on."""
    starts: bool = True
    safe: str = "true"
    seen_s: float = 0.0
    """How old what the log agent writes is."""
    step: float = 0.0

    def __post_init__(self) -> None:
        self.kube.put(NODES, node("n0", gpus=4))
        document = job("train", uid="job-train", annotations={ELASTIC_WIDTH: "1-4", ELASTIC_BATCH: "per-worker"})
        document["spec"] |= {"completionMode": "Indexed", "parallelism": 2, "completions": 2}
        self.kube.put(JOBS, document)
        self._reconcile()

    @property
    def width(self) -> int:
        document = self.kube.find(JOBS, "train", "team")
        return 0 if document is None else document["spec"]["parallelism"]

    def outcomes(self) -> list[Outcome]:
        document = self.kube.find(JOBS, "train", "team")
        return [] if document is None else [each.outcome for each in widths_of(document)]

    async def run(self) -> None:
        last_s = time.time()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = time.time()
            if self._reconcile():
                # Workers start again, from the last checkpoint.
                self.step -= self.step % 20
                await asyncio.sleep(0.1)
                now_s = last_s = time.time()
            if not (self.stops and self.width > 2):
                self.step += (now_s - last_s) / STEP_S / (self.slower if self.width > 2 else 1.0)
            last_s = now_s
            self._report(now_s)

    def _reconcile(self) -> bool:
        pods = {name: each for each in self.kube.all(PODS) if (name := each["metadata"]["name"]).startswith("train-")}
        wanted = {f"train-{index}" for index in range(self.width)} if self.starts or len(pods) < 2 else set(pods)
        for name in wanted - pods.keys():
            reference = owner("train") | {"uid": "job-train"}
            self.kube.put(PODS, pod(name, on="n0", job_name="train", ownerReferences=[reference]))
        for name in pods.keys() - wanted:
            del self.kube.objects[PODS.path(), "team", name]
        return bool(pods) and wanted != pods.keys()

    def _report(self, now_s: float) -> None:
        done_s = now_s - (self.step % 1) * STEP_S
        written = {
            **notes(),
            "kaiwo.ai/checkpoint-safe": self.safe,
            "kaiwo.ai/checkpoint-observed-at": stamp(now_s - self.seen_s),
            PROGRESS: f"{int(self.step)}/1000000",
            PROGRESS_AT: stamp(done_s).replace("Z", f".{int(done_s * 1e3) % 1000:03d}Z"),
            STEP_SECONDS: str(STEP_S),
        }
        for each in self.kube.all(PODS):
            self.kube.put(PODS, each | {"metadata": each["metadata"] | {"annotations": written}})


@pytest.fixture
async def train() -> AsyncIterator[Training]:
    training = Training()
    going_on = asyncio.create_task(training.run())
    await asyncio.sleep(0.05)
    yield training
    going_on.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await going_on


async def _candidate(train: Training, target: int | None = 3) -> WidthCandidate:
    """Whose steps may take longer for noise, on a machine that is busy with other things."""
    kube: Any = train.kube
    candidate = select_width(await read_widths(kube, time.time(), "team", "job/train", target=target), "job/train")
    assert candidate.proposal is not None
    return replace(candidate, result=replace(candidate.proposal, allowed=0.7))


async def _applied(train: Training, lines: list[str] | None = None) -> Decision:
    kube: Any = train.kube
    said = [] if lines is None else lines
    return await apply_width(kube, await _candidate(train), SETTINGS, said.append)


async def _when(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_worker_that_is_worth_it_stays_and_the_record_came_first(train: Training) -> None:
    lines: list[str] = []
    decision = await _applied(train, lines)
    assert decision.action is Action.KEEP, (decision, lines)
    assert (train.width, train.outcomes()) == (3, [Outcome.KEPT])
    assert train.kube.writes == ["record", "width", "record"]
    assert "to start again" in lines[0], "the sum"


async def test_a_worker_that_slows_the_others_goes(train: Training) -> None:
    train.slower = 3.0
    decision = await _applied(train)
    assert (decision.action, decision.reason.code) == (Action.UNDO, "STEPS_SLOWER")
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


@pytest.mark.parametrize(("safe", "seen_s", "why"), [("false", 0.0, "not safe to start"), ("true", 600.0, "log agent")])
async def test_nothing_changes_without_a_safe_moment(train: Training, safe: str, seen_s: float, why: str) -> None:
    candidate = await _candidate(train)
    train.safe, train.seen_s = safe, seen_s
    await asyncio.sleep(2 * STEP_S)
    kube: Any = train.kube
    with pytest.raises(Refused, match=why):
        await apply_width(kube, candidate, SETTINGS, lambda _: None)
    assert (train.width, train.kube.writes) == (2, [])


async def test_a_moment_that_passes_while_the_change_is_recorded_is_not_used(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await _when(lambda: "record" in train.kube.writes)
    train.safe = "false"
    train._report(time.time())
    decision = await watch
    if decision.reason.code == "MOMENT_PASSED":
        assert (train.width, train.kube.writes) == (2, ["record", "record"])


@pytest.mark.parametrize(("broken", "code"), [("stops", "PROGRESS_LOST"), ("starts", "WORKERS_DO_NOT_START")])
async def test_a_job_that_does_not_come_back_gets_its_width_back(train: Training, broken: str, code: str) -> None:
    setattr(train, broken, broken == "stops")
    decision = await _applied(train)
    assert (decision.action, decision.reason.code) == (Action.UNDO, code)
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_what_others_set_while_it_is_watched_stays(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await _when(lambda: train.width == 3)
    document = train.kube.find(JOBS, "train", "team")
    assert document is not None
    train.kube.put(JOBS, document | {"spec": document["spec"] | {"parallelism": 4, "completions": 4}})
    decision = await watch
    assert decision.reason.code == "CHANGED_BY_OTHERS"
    assert (train.width, train.outcomes()) == (4, [Outcome.UNDONE])


async def test_a_job_that_is_deleted_while_it_is_watched_is_over(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await _when(lambda: train.width == 3)
    del train.kube.objects[JOBS.path(), "team", "train"]
    decision = await watch
    assert decision.reason.code == "WORKLOAD_ENDED"


async def test_who_interrupts_the_watch_gets_the_width_of_before(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await _when(lambda: train.width == 3)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_nobody_else_changes_it_meanwhile(train: Training) -> None:
    candidate = await _candidate(train)
    watch = asyncio.create_task(_applied(train))
    await _when(lambda: Outcome.OPEN in train.outcomes())
    kube: Any = train.kube
    with pytest.raises(Refused, match=r"another change of train is open|train has 3 workers"):
        await apply_width(kube, candidate, SETTINGS, lambda _: None)
    await watch


@pytest.mark.parametrize(
    ("hard", "used", "code"),
    [
        ({"requests.nvidia.com/gpu": "2"}, {"requests.nvidia.com/gpu": "2"}, "NO_IDLE_GPUS"),
        ({"requests.nvidia.com/gpu": "3"}, {"requests.nvidia.com/gpu": "2"}, ""),
        ({"pods": "2"}, {"pods": "2"}, "NO_IDLE_GPUS"),
        ({"pods": "junk"}, {}, "NO_IDLE_GPUS"),
    ],
)
async def test_quotas_of_the_namespace_count(train: Training, hard: Any, used: Any, code: str) -> None:
    status = {"hard": hard, "used": used}
    train.kube.put(RESOURCE_QUOTAS, {"metadata": {"name": "q", "namespace": "team"}, "status": status})
    kube: Any = train.kube
    (candidate,) = await read_widths(kube, time.time(), "team", "job/train", target=3)
    assert (candidate.result.code if isinstance(candidate.result, Reason) else "") == code


async def test_who_is_pending_comes_first_and_gets_a_worker(train: Training) -> None:
    train.kube.put(PODS, pod("waits", on="", gpus=2))
    kube: Any = train.kube
    (wider,) = await read_widths(kube, time.time(), "team", "job/train", target=3)
    assert isinstance(wider.result, Reason)
    assert wider.result.code == "OTHERS_QUEUE"
    (planned,) = await read_widths(kube, time.time(), "team", "job/train")
    assert isinstance(planned.result, WidthProposal), planned.result
    assert (planned.result.change.after, planned.result.reason.code) == (1, "OTHERS_QUEUE")
