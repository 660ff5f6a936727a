"""Why a workload waits, as an Event on it: on change alone, on a real control plane, and of its namespace alone."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from controlplane.plane import ControlPlane

from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cli.local.pages.diagnoses import _without_other_namespaces
from kopt.cluster.client.api import Kube
from kopt.cluster.client.credentials import KubeconfigAccess
from kopt.controllers.overview.diagnosis.events import FEATURE, MOST_EXPLAINED, QUIET_S, REASON, DiagnosisEvents
from kopt.core.scheduling.diagnosis import Binding, Cause, Change, ChangeKind, Diagnosis, StartEstimate
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Explanation, Queued, QueueState, State
from kopt.core.switches import Setting, Switches
from tests.diagnosis.test_control_plane import Team, team

__all__ = ["team"]
NOW_S = 1_900_000_000.0
CAUSE = Cause(Binding.QUOTA_IN_USE, "2 GPUs are wanted and 1 is free of gpus.", 2, 1, "GPUs", "gpus", NOW_S - 7200)
FEWER = Change(ChangeKind.FEWER_GPUS, "Ask for 1 GPU instead of 2.", "main", "", "2", "1", verified=True)
DIAGNOSIS = Diagnosis("research/train", "Kueue", (CAUSE,), (FEWER,), StartEstimate(1800.0, 7200.0, 200), uid="w")


class Recorder:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.about: list[Any] = []

    def record(self, regarding: Any, reason: str, action: str, note: str, *, once: bool = False) -> None:
        assert (reason, once) == (REASON, True)
        self.about.append(regarding)
        self.notes.append(note)


def queued(name: str = "train", position: int | None = 1) -> Queued:
    return Queued(
        "research", name, "Job", f"{name}-w", f"{name}-j", "w", System.KUEUE, "gpus", "gpus", 0, 2000, State.PENDING,
        NOW_S, NOW_S, position=position,
    )  # fmt: skip


def explanation(diagnosis: Diagnosis = DIAGNOSIS, name: str = "train") -> Explanation:
    job = {"kind": "Job", "namespace": "research", "name": name, "uid": f"{name}-j"}
    return Explanation("", diagnosis=diagnosis, document={"job": job})


def diagnoses(switches: Switches | None = None) -> tuple[DiagnosisEvents, Recorder]:
    recorder = Recorder()
    return DiagnosisEvents(recorder, lambda: switches or Switches(), _without_other_namespaces), recorder


def test_it_is_told_on_change_alone_and_not_too_often() -> None:
    told, recorder = diagnoses()

    def tell(diagnosis: Diagnosis, after_s: float) -> int:
        return told.write([queued()], {"train-w": explanation(diagnosis)}, NOW_S + after_s)

    assert tell(DIAGNOSIS, 0) == 1
    (note,) = recorder.notes
    for part in ("Kueue", CAUSE.message, "2 h", FEWER.message, "30 min", "nine of ten"):
        assert part in note
    assert recorder.about[0]["kind"] == "Job"
    assert recorder.about[0]["uid"] == "train-j"
    assert tell(replace(DIAGNOSIS, start=StartEstimate(900.0, 3600.0)), 2 * QUIET_S) == 0, "time alone is no news"
    later = replace(DIAGNOSIS, start=StartEstimate(9000.0, 36000.0))
    assert tell(later, 1.0) == 0, "within the quiet time"
    assert tell(later, 2 * QUIET_S) == 1
    other = replace(later, causes=(replace(CAUSE, code=Binding.QUEUE_STOPPED),))
    assert tell(other, 4 * QUIET_S) == 1
    assert tell(replace(other, changes=()), 6 * QUIET_S) == 1
    assert tell(replace(other, changes=(replace(FEWER, verified=False),)), 8 * QUIET_S) == 0, (
        "nothing unchecked is said"
    )
    assert told.write([queued()], {}, NOW_S + 9 * QUIET_S) == 0


def test_what_is_off_asks_for_nothing_and_a_percentage_is_obeyed() -> None:
    state = QueueState(queued=(*(queued(f"train-{n}") for n in range(30)), queued("runs", None)))
    off, _ = diagnoses(Switches({FEATURE: 0}))
    assert off.wanted(state) == []
    everything, _ = diagnoses()
    assert len(everything.wanted(state)) == 30
    some, _ = diagnoses(Switches({FEATURE: 100}, {FEATURE: Setting(40, "ada", NOW_S, "try")}))
    assert 0 < len(some.wanted(state)) < 30
    many = QueueState(queued=tuple(queued(f"train-{n}") for n in range(3 * MOST_EXPLAINED)))
    assert len(everything.wanted(many)) == MOST_EXPLAINED


def test_names_of_other_namespaces_are_not_in_an_event() -> None:
    told, recorder = diagnoses()
    cause = replace(CAUSE, message="secret-team/run-7 and research/other are ahead of it.")
    told.write([queued()], {"train-w": explanation(replace(DIAGNOSIS, causes=(cause,)))}, NOW_S)
    assert "secret-team" not in recorder.notes[0]
    assert "research/other" in recorder.notes[0]


@pytest.mark.cluster
def test_describe_shows_the_diagnosis_and_the_job_stays_as_it_is(control_plane: ControlPlane, team: Team) -> None:
    for name, gpus in (("first", 5), ("second", 6)):
        team.submit(name, gpus)
        team.runs(name)
    team.submit("train", 4)
    diagnosis = team.diagnosis("train")
    before = team.api.get("batch/v1", "Job", "train", team.space)

    async def told() -> list[Any]:
        kube = Kube(KubeconfigAccess(str(control_plane.kubeconfig)))
        watch = ClusterWatch(kube, diagnoses=True)
        running = asyncio.create_task(watch.run())
        try:
            async with asyncio.timeout(90):
                while not (events := _events(team)):
                    if running.done():
                        running.result()
                    await asyncio.sleep(0.3)
                # Other objects change, its diagnosis does not.
                team.submit("later", 4)
                while not [event for event in _events(team) if event["regarding"]["name"] == "later"]:
                    await asyncio.sleep(0.3)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await kube.close()
        return events

    (event,) = asyncio.run(told())
    assert event["regarding"]["kind"] == "Job"
    assert event["regarding"]["uid"] == before["metadata"]["uid"]
    assert event["reportingController"] == "kaiwo.ai/pages"
    assert diagnosis["causes"][0]["message"] in event["note"]
    fewer = next(change for change in diagnosis["changes"] if change["verified"] and change["kind"] != "wait")
    assert fewer["message"] in event["note"]
    (still,) = [each for each in _events(team) if each["regarding"]["name"] == "train"]
    assert still["metadata"]["uid"] == event["metadata"]["uid"]
    after = team.api.get("batch/v1", "Job", "train", team.space)
    assert after["metadata"] == before["metadata"], "something was written on the Job"


def _events(team: Team) -> list[Any]:
    listed = team.api.list("events.k8s.io/v1", "Event", team.space)
    return [event for event in listed if event["reason"] == REASON]
