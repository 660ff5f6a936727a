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
from kopt.cli.rightsize.history import taken_back
from kopt.cli.rightsize.width_watch import WidthApplySettings, apply_width, select_width, showing
from kopt.cli.rightsize.widths import WidthCandidate, read_widths
from kopt.cluster.client.api import Patch
from kopt.cluster.client.errors import Conflict, Forbidden, Invalid, Unreachable
from kopt.cluster.client.resources import JOBS, KUEUE_WORKLOADS, NODES, PODS, RESOURCE_QUOTAS, Object
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.progress import PROGRESS, PROGRESS_AT, STEP_SECONDS
from kopt.cluster.objects.resize_history import RESIZES, RESIZING, widths_of, written
from kopt.cluster.workloads.resizing.elastic import (
    ELASTIC_BATCH,
    ELASTIC_WIDTH,
    KUEUE_ELASTIC,
    width_of_object,
)
from kopt.cluster.workloads.resizing.pods import ResizedPods
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.reason import Reason
from kopt.core.times import stamp
from kopt.core.workload.rightsizing import (
    Batch,
    Bounds,
    ChangeRecord,
    Lever,
    Outcome,
    Resize,
    WidthChange,
)
from kopt.policies.rightsizing.watch import Action, Decision, WatchSettings
from kopt.policies.rightsizing.width import WidthProposal

pytestmark = pytest.mark.long
SETTINGS = WidthApplySettings(
    ApplySettings(
        WatchSettings(
            window_s=1.0, least_s=0.5, deadline_s=3.0, sample_s=0.04, baseline_s=8.0, least_samples=16, pauses=1.0
        ),
        accept_s=0.4,
        poll_s=0.03,
        undo_s=1.0,
    ),
    least_back_s=1.2,
    settle_s=0.3,
    safe_s=2.0,
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
    joins: bool = True
    """Whether further workers join; else they wait for ever, and the others go on."""
    safe: str = "true"
    state: str = "TRAIN"
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

    def document(self) -> Object:
        document = self.kube.find(JOBS, "train", "team")
        assert document is not None
        return document

    def outcomes(self) -> list[Outcome]:
        document = self.kube.find(JOBS, "train", "team")
        return [] if document is None else [each.outcome for each in widths_of(document)]

    async def run(self) -> None:
        last_s = time.time()
        while True:
            await asyncio.sleep(STEP_S)
            now_s = time.time()
            if self._reconcile() and (self.joins or self.width < 3):
                # Workers start again, from the last checkpoint but one.
                self.step = max(0.0, self.step - 20 - self.step % 20)
                await asyncio.sleep(0.1)
                now_s = last_s = time.time()
            if not (self.stops and self.width > 2):
                self.step += (now_s - last_s) / STEP_S / (self.slower if self.width > 2 else 1.0)
            last_s = now_s
            self.report(now_s)

    def _reconcile(self) -> bool:
        pods = {name: each for each in self.kube.all(PODS) if (name := each["metadata"]["name"]).startswith("train-")}
        wanted = {f"train-{index}" for index in range(self.width)} if self.starts or len(pods) < 2 else set(pods)
        for name in wanted - pods.keys():
            reference = owner("train") | {"uid": "job-train"}
            labels = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": name[6:]}
            self.kube.put(PODS, pod(name, on="n0", job_name="train", ownerReferences=[reference], labels=labels))
        for name in pods.keys() - wanted:
            del self.kube.objects[PODS.path(), "team", name]
        return bool(pods) and wanted != pods.keys()

    def report(self, now_s: float) -> None:
        done_s = now_s - (self.step % 1) * STEP_S
        written = {
            **notes(),
            "kaiwo.ai/checkpoint-safe": self.safe,
            "kaiwo.ai/checkpoint-state": self.state,
            "kaiwo.ai/checkpoint-observed-at": stamp(now_s - self.seen_s),
            PROGRESS: f"{int(self.step)}/1000000",
            PROGRESS_AT: stamp(done_s).replace("Z", f".{int(done_s * 1e3) % 1000:03d}Z"),
            STEP_SECONDS: str(STEP_S),
        }
        for each in self.kube.all(PODS):
            self.kube.put(PODS, each | {"metadata": each["metadata"] | {"annotations": written}})


@pytest.fixture
async def train(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Training]:
    monkeypatch.setattr("kopt.cluster.workloads.resizing.width._POLL_S", 0.02)
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
    rest = replace(candidate.proposal.rest, restart_s=0.0)
    return replace(candidate, result=replace(candidate.proposal, allowed=0.7, rest=rest))


async def _applied(train: Training, lines: list[str] | None = None) -> Decision:
    kube: Any = train.kube
    said = [] if lines is None else lines
    return await apply_width(kube, await _candidate(train), SETTINGS, said.append)


def _pending(train: Training, gpus: int = 1) -> None:
    """A workload that no GPUs are left for."""
    train.kube.put(NODES, node("n0", gpus=2))
    train.kube.put(PODS, pod("waits", on="", gpus=gpus))


async def when(condition: Callable[[], bool]) -> None:
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
    assert (decision.action, decision.reason.code) == (Action.UNDO, "SAMPLES_COST_MORE")
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


async def test_a_moment_that_passes_while_the_change_is_recorded_is_not_used(
    train: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = train.kube.patch

    async def patched(*given: Any, **more: Any) -> Object:
        result = await patch(*given, **more)
        if "record" in train.kube.writes:
            train.safe = "false"
            train.report(time.time())
        return result

    monkeypatch.setattr(train.kube, "patch", patched)
    decision = await _applied(train)
    assert decision.reason.code == "MOMENT_PASSED"
    assert (train.width, train.outcomes(), train.kube.writes) == (2, [], ["record", "record"])
    assert RESIZING not in train.document()["metadata"]["labels"]


@pytest.mark.parametrize(("broken", "code"), [("stops", "PROGRESS_LOST"), ("starts", "WORKERS_DO_NOT_START")])
async def test_a_job_that_does_not_come_back_gets_its_width_back(train: Training, broken: str, code: str) -> None:
    setattr(train, broken, broken == "stops")
    decision = await _applied(train)
    assert (decision.action, decision.reason.code) == (Action.UNDO, code)
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_what_others_set_while_it_is_watched_stays(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await when(lambda: train.width == 3)
    document = train.kube.find(JOBS, "train", "team")
    assert document is not None
    train.kube.put(JOBS, document | {"spec": document["spec"] | {"parallelism": 4, "completions": 4}})
    decision = await watch
    assert decision.reason.code == "CHANGED_BY_OTHERS"
    assert (train.width, train.outcomes()) == (4, [Outcome.UNDONE])


async def test_a_job_that_is_deleted_while_it_is_watched_is_over(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await when(lambda: train.width == 3)
    del train.kube.objects[JOBS.path(), "team", "train"]
    decision = await watch
    assert decision.reason.code == "WORKLOAD_ENDED"


async def test_who_interrupts_the_watch_gets_the_width_of_before(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await when(lambda: train.width == 3)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_nobody_else_changes_it_meanwhile(train: Training) -> None:
    candidate = await _candidate(train)
    watch = asyncio.create_task(_applied(train))
    await when(lambda: Outcome.OPEN in train.outcomes())
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
    _pending(train)
    kube: Any = train.kube
    (wider,) = await read_widths(kube, time.time(), "team", "job/train", target=3)
    assert isinstance(wider.result, Reason)
    assert wider.result.code == "OTHERS_QUEUE"
    (planned,) = await read_widths(kube, time.time(), "team", "job/train")
    assert isinstance(planned.result, WidthProposal), planned.result
    assert (planned.result.change.after, planned.result.reason.code) == (1, "OTHERS_QUEUE")


@pytest.mark.parametrize(("gpus", "code"), [(1, "OTHERS_QUEUE"), (2, "WIDTH_IS_RIGHT")])
async def test_a_worker_is_given_up_only_for_what_could_run_on_its_gpus(train: Training, gpus: int, code: str) -> None:
    _pending(train, gpus)
    document = train.document()
    document["metadata"]["annotations"][ELASTIC_WIDTH] = "1-2"
    train.kube.put(JOBS, document)
    assert (await _reason(train)).code == code


async def _reason(train: Training, target: int | None = None) -> Reason:
    """Of a change, or of there being none."""
    kube: Any = train.kube
    (candidate,) = await read_widths(kube, time.time(), "team", "job/train", target=target)
    return candidate.result if isinstance(candidate.result, Reason) else candidate.result.reason


async def test_a_worker_that_waits_for_the_others_for_ever_goes(train: Training) -> None:
    """As torchrun's does beyond the most nodes that it was started with: with a batch for each, steps are the same."""
    train.joins = False
    decision = await _applied(train)
    assert (decision.action, decision.reason.code) == (Action.UNDO, "WORKER_NOT_JOINED")
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_time_to_be_back_counts_from_where_all_workers_run(train: Training) -> None:
    train.starts = False
    settings = replace(SETTINGS, apply=replace(SETTINGS.apply, accept_s=8.0))
    kube: Any = train.kube
    watch = asyncio.create_task(apply_width(kube, await _candidate(train), settings, lambda _: None))
    await when(lambda: train.width == 3)
    await asyncio.sleep(SETTINGS.least_back_s)
    train.starts = True
    assert (await watch).action is Action.KEEP


async def test_gpus_that_were_given_to_others_are_not_taken_back_from_them(train: Training) -> None:
    _pending(train)
    kube: Any = train.kube
    watch = asyncio.create_task(apply_width(kube, await _candidate(train, 1), SETTINGS, lambda _: None))
    await when(lambda: train.width == 1)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (train.width, train.outcomes()) == (1, [Outcome.KEPT])


async def test_gpus_that_no_other_needs_any_more_are(train: Training) -> None:
    _pending(train)
    kube: Any = train.kube
    watch = asyncio.create_task(apply_width(kube, await _candidate(train, 1), SETTINGS, lambda _: None))
    await when(lambda: train.width == 1)
    del train.kube.objects[PODS.path(), "team", "waits"]
    await asyncio.sleep(0.1)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_a_width_is_taken_back_when_no_checkpoint_is_being_written(train: Training) -> None:
    watch = asyncio.create_task(_applied(train))
    await when(lambda: train.width == 3)
    train.safe, train.state = "false", "CKPT_WRITING"
    train.report(time.time())
    watch.cancel()
    await asyncio.sleep(0.5)
    assert train.width == 3
    train.safe, train.state = "true", "TRAIN"
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert (train.width, train.outcomes()) == (2, [Outcome.UNDONE])


async def test_who_takes_a_width_back_by_hand_says_so_where_that_is_not_safe_and_keeps_its_figures(
    train: Training,
) -> None:
    kube: Any = train.kube
    resized = _resized(train)
    resized.step_seconds = 0.5, 0.4
    await resized.open(time.time())
    await resized.apply()
    await resized.finish(Outcome.KEPT, "Fine.")
    train.safe = "false"
    await asyncio.sleep(0.3)
    with pytest.raises(Refused, match=r"not safe now.*--now"):
        await taken_back(kube, "team", "job/train", lambda _: None)
    assert train.width == 3
    await taken_back(kube, "team", "job/train", lambda _: None, at_once=True)
    assert train.width == 2
    assert [(each.outcome, each.step_seconds) for each in widths_of(train.document())] == [(Outcome.UNDONE, (0.5, 0.4))]


def _resized(train: Training) -> ResizedWidth:
    kube: Any = train.kube
    return ResizedWidth(kube, width_of_object(JOBS, train.document()), WidthChange(2, 3, Batch.FIXED), time.time)


@pytest.mark.parametrize("lost", [Unreachable("no answer"), asyncio.CancelledError()])
async def test_what_was_recorded_without_an_answer_is_not_left_open(
    train: Training, lost: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, losses = train.kube.patch, [lost]

    async def patched(*given: Any, **more: Any) -> Object:
        result = await patch(*given, **more)
        if losses:
            raise losses.pop()
        return result

    monkeypatch.setattr(train.kube, "patch", patched)
    with pytest.raises(type(lost)):
        await _resized(train).open(time.time())
    assert (losses, train.outcomes()) == ([], [])
    assert RESIZING not in train.document()["metadata"]["labels"]
    assert RESIZES not in train.document()["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("notes", "why"),
    [
        ({"kaiwo.ai/opt-out": "true"}, "opts out"),
        ({ELASTIC_WIDTH: "1-2"}, "may have 1 to 2"),
        ({ELASTIC_WIDTH: None}, "does not say that it may"),
        (None, "1 workload is pending"),
    ],
)
async def test_what_was_planned_is_looked_at_again_before_it_is_begun(train: Training, notes: Any, why: str) -> None:
    candidate = await _candidate(train)
    if notes is None:
        _pending(train)
    else:
        document = train.document()
        written_ = {key: each for key, each in (document["metadata"]["annotations"] | notes).items() if each}
        train.kube.put(JOBS, document | {"metadata": document["metadata"] | {"annotations": written_}})
    kube: Any = train.kube
    with pytest.raises(Refused, match=f"not as it was planned for: .*{why}"):
        await apply_width(kube, candidate, SETTINGS, lambda _: None)
    assert (train.width, train.outcomes(), train.kube.writes) == (2, [], [])


async def test_nodes_where_its_workers_cannot_run_have_no_room_for_them(train: Training) -> None:
    tainted = node("n1")
    tainted["spec"]["taints"] = [{"key": "other", "value": "team", "effect": "NoSchedule"}]
    train.kube.put(NODES, node("n0", gpus=2))
    train.kube.put(NODES, tainted)
    assert (await _reason(train, 3)).code == "NO_IDLE_GPUS"
    train.kube.put(NODES, node("n1"))
    assert (await _reason(train, 3)).code == "WIDTH_ASKED"


async def test_kueue_may_manage_a_job_without_a_queue(train: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata: Object = {"name": "w", "namespace": "team", "ownerReferences": [{"uid": "job-train"}]}
    train.kube.put(KUEUE_WORKLOADS, {"metadata": metadata})
    assert "Kueue would stop it" in (await _reason(train, 3)).message
    train.kube.put(KUEUE_WORKLOADS, {"metadata": metadata | {"annotations": {KUEUE_ELASTIC: "true"}}})
    document = train.document()
    document["metadata"]["annotations"][KUEUE_ELASTIC] = "true"
    train.kube.put(JOBS, document)
    assert (await _reason(train, 3)).code == "WIDTH_ASKED"
    listed = train.kube.list

    async def refused(resource: Any, *given: Any, **more: Any) -> Any:
        if resource == KUEUE_WORKLOADS:
            raise Forbidden(403, "Forbidden", "no")
        return await listed(resource, *given, **more)

    monkeypatch.setattr(train.kube, "list", refused)
    assert "may not list its Workloads" in (await _reason(train, 3)).message


async def test_one_jobs_nonsense_is_not_the_end_of_the_plan(train: Training) -> None:
    times = ([5e-324, 1.0], [1.0, 9e6])
    records = [ChangeRecord(WidthChange(2, 3, Batch.PER_WORKER), 0.0, Outcome.KEPT, 1.0, "", each) for each in times]  # type: ignore[arg-type]
    document = train.document()
    document["metadata"]["annotations"][RESIZES] = written(records)
    train.kube.put(JOBS, document)
    odd = job("odd", uid="job-odd", annotations={ELASTIC_WIDTH: "1-4", ELASTIC_BATCH: "fixed"})
    odd["spec"] |= {"completionMode": "Indexed"}
    train.kube.put(JOBS, odd)
    reference = owner("odd") | {"uid": "job-odd"}
    strange = pod("odd-0", on="n0", ownerReferences=[reference])
    strange["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "junk"
    train.kube.put(PODS, strange)
    kube: Any = train.kube
    results = {each.workload.label.lower(): each.result for each in await read_widths(kube, time.time(), "team")}
    assert isinstance(results["job/train"], WidthProposal | Reason)
    assert isinstance(odd_ := results["job/odd"], Reason)
    assert odd_.code == "WIDTH_NOT_COMPUTED"


async def test_pods_are_not_changed_while_their_jobs_width_is(train: Training) -> None:
    await _resized(train).open(time.time())
    pods = [each for each in train.kube.all(PODS) if each["metadata"]["name"].startswith("train-")]
    kube: Any = train.kube
    halved = Resize("a", Lever.CPU, Bounds(1000, None), Bounds(500, None))
    with pytest.raises(Conflict, match="the width of train is being changed"):
        await ResizedPods(kube, pods, halved, time.time).open(time.time())


def test_of_many_workers_the_logs_of_the_lowest_ranks_are_followed() -> None:
    label = "batch.kubernetes.io/job-completion-index"
    pods = [pod(f"p{at}", labels={label: str(at)}) for at in (11, 2, 10, 0, 1, 3)]
    assert [each["metadata"]["name"] for each in showing(pods)] == ["p0", "p1", "p2", "p3"]
