"""What `kopt why` and the pages say of changes of a job's CPU and memory."""

from typing import Any

from kopt.cluster.client.resources import JOBS
from kopt.cluster.objects.resize_history import RESIZES, written
from kopt.controllers.overview.job import JobSnapshot, Thing
from kopt.controllers.overview.why import why
from kopt.core.units import GIB
from kopt.core.workload.rightsizing import Bounds, Lever, Outcome, Resize, ResizeRecord

NOW_S = 1_900_000_000.0
CPU = Resize("main", Lever.CPU, Bounds(8000), Bounds(4000))
MEMORY = Resize("main", Lever.MEMORY, Bounds(2 * GIB), Bounds(GIB))


def _job(*notes: str) -> JobSnapshot:
    job = Thing(JOBS, {"metadata": {"name": "train", "namespace": "team", "uid": "job"}, "spec": {}, "status": {}})
    pods: list[Any] = [
        {
            "metadata": {
                "name": f"train-{number}",
                "namespace": "team",
                "uid": str(number),
                "annotations": annotations,
            },
            "spec": {"containers": []},
            "status": {"phase": "Running"},
        }
        for number, note in enumerate(notes)
        if (annotations := {RESIZES: note}) is not None
    ]
    return JobSnapshot(NOW_S, job, job, pods=tuple(pods))


def _said(job: JobSnapshot) -> dict[str, str]:
    return {finding.code: finding.message for finding in why(job).findings}


def test_changes_are_said_once_for_all_pods_and_the_open_one_first() -> None:
    kept = ResizeRecord(CPU, NOW_S - 3600, Outcome.KEPT, NOW_S - 3000, "Steps are not slower.")
    open_ = ResizeRecord(MEMORY, NOW_S - 120)
    said = _said(_job(*[written([open_, kept])] * 2))
    assert said["RESIZED"] == (
        "Its cpu of main: request 8 to 4, of 2 pods, 60 min ago; it stays. Steps are not slower."
    )
    assert said["RESIZE_OPEN"].startswith(
        "Its memory of main: request 2048Mi to 1024Mi, of 2 pods, 2 min ago: its steps"
    )
    assert list(said).index("RESIZE_OPEN") < list(said).index("RESIZED")


def test_what_was_taken_back_says_why() -> None:
    undone = ResizeRecord(CPU, NOW_S - 600, Outcome.UNDONE, NOW_S - 500, "Steps are slower: +12.0%.")
    assert _said(_job(written([undone])))["RESIZED"].endswith("it was taken back. Steps are slower: +12.0%.")


def test_nonsense_says_nothing() -> None:
    assert not {"RESIZED", "RESIZE_OPEN"} & _said(_job("nonsense", "[{}]")).keys()
