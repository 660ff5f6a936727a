"""What Workloads and Jobs show of runs, and how runs are sent: once each, again after failures, none lost."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kopt.cluster.objects.progress import progress_of
from kopt.cluster.workloads.runs import job_type, run_of_job, run_of_workload
from kopt.controllers.runs.reporter import BATCH, Reporter, SendError
from kopt.core.workload.run_time import JobKind, JobRun, StepProgress

GPU = "nvidia.com/gpu"


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}Z"


EPOCH_S = 1767225600.0


def conditions(**since: int | None) -> list[dict[str, str]]:
    return [
        {"type": kind, "status": "False" if second is None else "True", "lastTransitionTime": at(second or 0)}
        for kind, second in since.items()
    ]


def workload(gpus: int = 8, pods: int = 2, **since: int | None) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "main", "resources": {"requests": {GPU: str(gpus)}}}]}}
    return {
        "metadata": {
            "name": "job-finetune-20260101-x7k2p-1a2b3",
            "namespace": "ml",
            "uid": "u1",
            "ownerReferences": [{"kind": "Job", "name": "finetune-20260101-x7k2p", "uid": "u0", "controller": True}],
        },
        "spec": {"queueName": "local", "podSets": [{"name": "main", "count": pods, "template": pod}]},
        "status": {"admission": {"clusterQueue": "research"}, "conditions": conditions(**since)},
    }


def test_a_run_begins_when_its_pods_are_ready_and_ends_when_it_has_finished() -> None:
    assert run_of_workload(workload(QuotaReserved=None)) is None
    running = run_of_workload(workload(Admitted=10, PodsReady=40))
    kind = JobKind("research", 16, "finetune", "ml")
    assert running == JobRun(f"u1/{EPOCH_S + 10:.0f}", kind, EPOCH_S + 40)
    ended = run_of_workload(workload(Admitted=10, PodsReady=40, Finished=100))
    assert ended == JobRun(f"u1/{EPOCH_S + 10:.0f}", kind, EPOCH_S + 40, EPOCH_S + 100)
    assert ended.duration_seconds == 60


def test_an_eviction_interrupts_the_run_and_the_next_admission_is_another() -> None:
    evicted = run_of_workload(workload(Admitted=10, Evicted=50))
    assert evicted is not None
    assert (evicted.interrupted, evicted.duration_seconds) == (True, None)
    assert run_of_workload(workload(Admitted=None, Evicted=50)) is None
    again = run_of_workload(workload(Admitted=90, Evicted=50))
    assert again is not None
    assert (again.ended_s, again.job == evicted.job) == (None, False)


def job(**status: Any) -> dict[str, Any]:
    limits = {"limits": {GPU: "4"}}
    return {
        "metadata": {"name": "train-1", "namespace": "ml", "uid": "u2", "labels": {"kai.scheduler/queue": "team-a"}},
        "spec": {"parallelism": 3, "template": {"spec": {"containers": [{"name": "main", "resources": limits}]}}},
        "status": status,
    }


def test_jobs_outside_of_kueue() -> None:
    assert run_of_job(job()) is None
    run = run_of_job(job(startTime=at(5), completionTime=at(65)))
    assert run == JobRun(f"u2/{EPOCH_S + 5:.0f}", JobKind("team-a", 12, "train", "ml"), EPOCH_S + 5, EPOCH_S + 65)
    failed = run_of_job(job(startTime=at(5), conditions=conditions(Failed=30)))
    assert failed is not None
    assert failed.duration_seconds == 25
    suspended = run_of_job(job(startTime=at(5), conditions=conditions(Suspended=30)))
    assert suspended is not None
    assert suspended.interrupted
    managed = job(startTime=at(5))
    managed["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "local"
    assert run_of_job(managed) is None, "its Workload shows it"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("finetune-llama-20260101-x7k2p", "finetune-llama"),
        ("train-3", "train"),
        ("nightly-eval", "nightly-eval"),
        ("bert-base", "bert-base"),
        ("sweep-", "sweep"),
        ("12345", "12345"),
    ],
)
def test_the_type_of_a_job_is_its_name_without_what_tells_runs_apart(name: str, expected: str) -> None:
    assert job_type(name) == expected


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(status=_ANYTHING, spec=_ANYTHING, labels=_ANYTHING)
def test_nothing_that_is_written_there_makes_it_raise(status: Any, spec: Any, labels: Any) -> None:
    document = {
        "metadata": {"name": "x", "namespace": "y", "uid": "z", "labels": labels},
        "spec": spec,
        "status": status,
    }
    for read in (run_of_job, run_of_workload):
        assert read(document) is None or isinstance(read(document), JobRun)


class Endpoint(RuleBasedStateMachine):
    """Objects come, change and go; the endpoint fails at times. In the end it knows every start and end."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, JobRun] = {}
        self.works, self.now_s, self.count = True, 0.0, 0
        self.reporter = Reporter(self.take, lambda: self.now_s)
        self.shown: dict[str, JobRun] = {}
        self.ended: dict[str, JobRun] = {}

    async def take(self, runs: Sequence[JobRun]) -> int:
        if not self.works:
            raise SendError("not now")
        assert len(runs) <= BATCH
        for run in runs:
            before = self.known.get(run.job)
            if before is None or before.ended_s is None:
                self.known[run.job] = run
        return len(runs)

    @rule(key=st.sampled_from("abc"))
    def starts(self, key: str) -> None:
        self.now_s += 1
        before = self.shown.get(key)
        if before is not None and before.ended_s is None:
            self.ended[before.job] = before
        self.count += 1
        run = self.shown[key] = JobRun(f"{key}/{self.count}", JobKind("q", 1), self.now_s)
        self.reporter.observe(("Job", ("ns", key)), run)

    @rule(key=st.sampled_from("abc"), gone=st.booleans())
    def ends(self, key: str, gone: bool) -> None:
        self.now_s += 1
        run = self.shown.get(key)
        if run is None:
            return
        if gone:
            del self.shown[key]
            if run.ended_s is None:
                self.ended[run.job] = run
            self.reporter.observe(("Job", ("ns", key)), None)
        elif run.ended_s is None:
            self.shown[key] = JobRun(run.job, run.kind, run.started_s, self.now_s)
            self.reporter.observe(("Job", ("ns", key)), self.shown[key])

    @rule(works=st.booleans())
    def changes(self, works: bool) -> None:
        self.works = works

    @rule()
    def restarts(self) -> None:
        """Another replica sees what is there, and sends all of it."""
        asyncio.run(self.reporter.step())
        self.works = True
        asyncio.run(self.reporter.step())
        self.reporter = Reporter(self.take, lambda: self.now_s)
        for key, run in self.shown.items():
            self.reporter.observe(("Job", ("ns", key)), run)
        self.reporter.send_all()

    @rule()
    def sends(self) -> None:
        asyncio.run(self.reporter.step())

    def teardown(self) -> None:
        self.works = True
        asyncio.run(self.reporter.step())
        assert self.reporter.pending == 0
        for run in self.shown.values():
            assert self.known[run.job] == run
        for job_id in self.ended:
            assert self.known[job_id].interrupted


TestEndpoint = Endpoint.TestCase


def test_what_fails_is_tried_again_and_what_is_refused_is_dropped() -> None:
    answers: list[Exception | None] = [SendError("down"), SendError("wrong", refused=True), None]

    async def send(runs: Sequence[JobRun]) -> int:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return len(runs)

    reporter = Reporter(send, lambda: 0.0)
    reporter.observe(("Job", ("a", "b")), JobRun("1", JobKind("q", 1), 0.0))
    assert (asyncio.run(reporter.step()) or 0) > 0
    assert (reporter.pending, reporter.errors) == (1, 1)
    assert asyncio.run(reporter.step()) is None
    assert (reporter.pending, reporter.errors, reporter.sent) == (0, 2, 0)


def test_a_job_starts_when_its_pods_do() -> None:
    """``startTime`` is when the Job made its pods; they may wait for a node for hours."""
    sent: list[JobRun] = []

    async def send(runs: Sequence[JobRun]) -> int:
        sent.extend(runs)
        return len(runs)

    now_s = 100.0
    reporter = Reporter(send, lambda: now_s)
    source, run = ("Job", ("ns", "a")), JobRun("1", JobKind("q", 1), 10.0)
    reporter.observe(source, run, has_begun=False)
    asyncio.run(reporter.step())
    assert (sent, reporter.running) == ([], 0)
    now_s = 500.0
    reporter.observe(source, run)
    now_s = 600.0
    reporter.observe(source, run, has_begun=False)
    asyncio.run(reporter.step())
    assert sent == [JobRun("1", JobKind("q", 1), 500.0)], "a pod that restarts interrupts nothing"
    reporter.observe(source, JobRun("1", JobKind("q", 1), 10.0, 700.0))
    asyncio.run(reporter.step())
    assert sent[1:] == [JobRun("1", JobKind("q", 1), 500.0, 700.0)]
    late = Reporter(send, lambda: 0.0)
    late.observe(source, run)
    asyncio.run(late.step())
    assert sent[2:] == [run], "of one that ran before, nothing better is known"


def annotated(**annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {f"kaiwo.ai/{name.replace('_', '-')}": text for name, text in annotations.items()}}
    }


def test_the_newest_progress_of_a_workloads_pods_counts() -> None:
    old = annotated(progress="5/500", progress_at=at(1), step_seconds="2 2.5")
    new = annotated(progress="9/500", progress_at=at(9), step_seconds="2 2.25")
    assert progress_of([new, old, annotated()]) == StepProgress(9, 500, EPOCH_S + 9, (2.0, 2.25))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"progress": "9/500"},
        {"progress": "9/5", "progress_at": at(1), "step_seconds": "1"},
        {"progress": "9/500", "progress_at": "soon", "step_seconds": "1"},
        {"progress": "9/500", "progress_at": at(1), "step_seconds": ""},
        {"progress": "9/500", "progress_at": at(1), "step_seconds": "nan"},
        {"progress": "9/500", "progress_at": at(1), "step_seconds": "1 x"},
        {"progress": f"9/{'9' * 40}", "progress_at": at(1), "step_seconds": "1"},
    ],
)
def test_annotations_that_say_nonsense_say_nothing(wrong: dict[str, str]) -> None:
    assert progress_of([annotated(**wrong)]) is None


def test_a_workload_tells_since_when_it_had_waited_and_what_gave_it_gpus() -> None:
    document = workload(Admitted=40, PodsReady=50)
    document["metadata"]["creationTimestamp"] = at(10)
    flavors = {"cpu": "any", GPU: "h100"}
    document["status"]["admission"]["podSetAssignments"] = [{"name": "main", "flavors": flavors}]
    run = run_of_workload(document)
    assert run is not None
    assert (run.submitted_s, run.pool, run.started_s) == (EPOCH_S + 10, "h100", EPOCH_S + 50)


@pytest.mark.parametrize(
    ("since", "waited_since"),
    [
        ({"Evicted": None, "Requeued": 60}, EPOCH_S + 60),
        ({"Evicted": 60}, EPOCH_S),
        ({"Requeued": 95}, EPOCH_S),
    ],
)
def test_after_an_eviction_it_waits_from_when_it_was_queued_again(
    since: dict[str, int | None], waited_since: float
) -> None:
    document = workload(Admitted=90, **since)
    document["metadata"]["creationTimestamp"] = at(0)
    run = run_of_workload(document)
    assert run is not None
    evicted = "Evicted" in since and "Requeued" not in since
    assert run.submitted_s == (None if evicted else waited_since)


def test_a_job_outside_of_kueue_waits_from_its_creation_unless_it_was_suspended() -> None:
    document = job(startTime=at(30), completionTime=at(90))
    document["metadata"]["creationTimestamp"] = at(10)
    run = run_of_job(document)
    assert run is not None
    assert run.submitted_s == EPOCH_S + 10
    document["status"]["conditions"] = conditions(Suspended=None)
    again = run_of_job(document)
    assert again is not None
    assert again.submitted_s is None
