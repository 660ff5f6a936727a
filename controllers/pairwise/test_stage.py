"""The stage of a test, read from its Job and pods alone, so that the next leader sees the same."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kopt.cluster.client.resources import Key, Object, key_of
from kopt.cluster.objects.fields import at, items, text
from kopt.controllers.pairwise.jobs import BENCHMARK_LABEL, pair_of_job
from kopt.controllers.pairwise.spec import Benchmark
from kopt.controllers.pairwise.views import ObservedPod
from kopt.core.hardware.pairwise import Pair
from kopt.core.times import seconds

_LATE_S = 60.0
"""After its deadline the Job controller has this long to end a test; then we do."""


_ROOM_S = 30.0
"""For which a pod of a test may find no room: another pod was faster."""


class Stage(StrEnum):
    RUNS = "runs"
    SUCCEEDED = "succeeded"
    """Rank 0 has ended well: its log holds the result."""
    FAILED = "failed"
    EVICTED = "taken"
    """Others have ended it, or its node is gone: it is tried again."""


@dataclass(frozen=True)
class Test:
    """The Job of a pair, as it was read."""

    job: Object
    pair: Pair
    benchmark: str

    @property
    def key(self) -> Key:
        return key_of(self.job)

    @property
    def uid(self) -> str:
        return str(self.job["metadata"]["uid"])

    @property
    def started_s(self) -> float:
        """When its pods could first run."""
        return seconds(text(self.job, "status", "startTime") or text(self.job, "metadata", "creationTimestamp"))

    def cost_gpu_s(self, gpus: int, now_s: float) -> float:
        """What it has kept from others: its GPUs from its start to its end."""
        ended = next(
            (
                text(item, "lastTransitionTime")
                for _, item in items(self.job, "status", "conditions")
                if text(item, "type") in ("Complete", "Failed") and text(item, "status") == "True"
            ),
            "",
        )
        return gpus * max(0.0, (seconds(ended) if ended else now_s) - self.started_s)


@dataclass(frozen=True)
class Observation:
    """``pod``: of rank 0, where its log may say more; ``at_s``: when it ended."""

    stage: Stage
    why: str = ""
    pod: ObservedPod | None = None
    at_s: float = 0.0


def test_of(job: Object) -> Test | None:
    """None for a Job that is being deleted, or is no test."""
    pair, benchmark = pair_of_job(job), text(job, "metadata", "labels", BENCHMARK_LABEL)
    if pair is None or not benchmark or "deletionTimestamp" in job["metadata"]:
        return None
    return Test(job, pair, benchmark)


def observe(
    test: Test, pods: Sequence[ObservedPod], nodes: Collection[str], benchmark: Benchmark, now_s: float
) -> Observation:
    """``pods`` are those of the Job, ``nodes`` those that there are."""
    first = next((pod for pod in pods if pod.rank == "0" and pod.ended), None)
    if first is not None and first.succeeded:
        return Observation(Stage.SUCCEEDED, "", first, first.finished_s or now_s)
    if missing := [name for name in test.pair if name not in nodes]:
        return Observation(Stage.EVICTED, f"node {missing[0]} is gone")
    if any(pod.evicted for pod in pods):
        return Observation(Stage.EVICTED, "one of its pods was evicted or deleted")
    broken = next((pod for pod in sorted(pods, key=lambda pod: pod.rank) if pod.ended and not pod.succeeded), None)
    if broken is not None:
        code = "" if broken.exit_code is None else f" with exit code {broken.exit_code}"
        return Observation(Stage.FAILED, f"rank {broken.rank} ended{code}", first, broken.finished_s or now_s)
    late = Observation(Stage.FAILED, f"it did not end within {benchmark.timeout_s:.0f} s", None, now_s)
    for _, item in items(test.job, "status", "conditions"):
        if text(item, "type") == "Failed" and text(item, "status") == "True":
            ended_s = seconds(text(item, "lastTransitionTime"))
            if text(item, "reason") == "DeadlineExceeded":
                return Observation(Stage.FAILED, late.why, None, ended_s)
            return Observation(Stage.EVICTED, "its pods were deleted")
    if any(pod.unschedulable for pod in pods) and now_s - test.started_s > _ROOM_S:
        return Observation(Stage.EVICTED, "the scheduler finds no node for one of its pods")
    if now_s <= _ends_s(test, benchmark):
        return Observation(Stage.RUNS)
    return Observation(Stage.EVICTED, "its Job was suspended") if at(test.job, "spec", "suspend") is True else late


def next_check_s(test: Test, benchmark: Benchmark, now_s: float) -> float:
    """When the stage of a running test may change by time alone."""
    room_s = test.started_s + _ROOM_S + 1
    return room_s if now_s < room_s else _ends_s(test, benchmark) + 1


def _ends_s(test: Test, benchmark: Benchmark) -> float:
    return test.started_s + benchmark.timeout_s + _LATE_S
