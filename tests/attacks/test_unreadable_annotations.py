"""An annotation that cannot be read is said on its object by who would have gone by it, once; so is a forged one."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from kopt.cluster.client.resources import EVENTS, JOBS, KUEUE_WORKLOADS, PODS, Object, Resource
from kopt.cluster.holds.hold import UNDO_ANNOTATION, release
from kopt.cluster.objects.annotations import AnnotationError, ForgedError
from kopt.cluster.objects.seals import SEAL, Seal
from kopt.cluster.runtime.annotation_checks import checks
from kopt.cluster.runtime.manager import LedReplica

from .api_in_memory import MemoryKube
from .scenarios import LEDGER, PLAIN, REALLOCATION, SIZING, STAGING, Scenario
from .scenarios.objects import job, notes, pod, workload
from .test_one_annotation import running, until

NOTICE, DECISION, REQUEST = "kaiwo.ai/evicting", "kaiwo.ai/preemption", "kaiwo.ai/save-requested"
STAGED = "kaiwo.ai/staging"
UID = "uid-a"
BROKEN = '{"at":1e999}'


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    resource: Resource
    annotation: str
    make: Callable[..., Object]
    labels: tuple[tuple[str, str], ...] = ()

    def hostile(self, text: str, **more: str) -> Object:
        found = self.make({self.annotation: text, **more})
        found["metadata"] |= {"labels": dict(self.labels), "uid": UID}
        return found

    def __str__(self) -> str:
        return f"{self.scenario.name}: {self.resource.kind} {self.annotation.removeprefix('kaiwo.ai/')}"


def a_pod(annotations: dict[str, str]) -> Object:
    return pod("a-hostile", "tenant", on="n9", annotations=notes() | annotations)


def a_job(annotations: dict[str, str]) -> Object:
    return job("a-hostile", "tenant", annotations={"kaiwo.ai/staged-data": "x"} | annotations)


def a_workload(annotations: dict[str, str]) -> Object:
    return workload("a-hostile", "tenant", annotations=annotations)


def held(by: str) -> tuple[tuple[str, str], ...]:
    return (("kaiwo.ai/held", by),)


CASES = [
    Case(PLAIN, PODS, NOTICE, a_pod),
    Case(PLAIN, PODS, DECISION, a_pod),
    Case(PLAIN, PODS, REQUEST, a_pod),
    Case(PLAIN, KUEUE_WORKLOADS, DECISION, a_workload),
    Case(REALLOCATION, PODS, REQUEST, a_pod),
    Case(REALLOCATION, KUEUE_WORKLOADS, NOTICE, a_workload),
    Case(LEDGER, PODS, NOTICE, a_pod),
    Case(STAGING, JOBS, STAGED, a_job),
]
UNDOING = [
    Case(PLAIN, KUEUE_WORKLOADS, UNDO_ANNOTATION, a_workload, held("preemption")),
    Case(REALLOCATION, KUEUE_WORKLOADS, UNDO_ANNOTATION, a_workload, held("lending")),
    Case(SIZING, JOBS, UNDO_ANNOTATION, a_job, held("profiling")),
    Case(STAGING, JOBS, UNDO_ANNOTATION, a_job, held("staging")),
]


def said(kube: MemoryKube, reason: str, annotation: str) -> list[str]:
    found = [one for one in kube.all(EVENTS) if one["reason"] == reason and one["regarding"]["name"] == "a-hostile"]
    return [one["note"] for one in found if annotation in one["note"]]


def started(case: Case, kube: MemoryKube) -> LedReplica:
    case.scenario.fill(kube)
    return case.scenario.start(kube)


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_what_cannot_be_read_is_said_on_its_object(case: Case) -> None:
    kube = MemoryKube()
    replica = started(case, kube)
    kube.put(case.resource, case.hostile(BROKEN))
    async with running(replica) as task:
        await until(lambda: said(kube, "InvalidAnnotation", case.annotation), task)
        assert not said(kube, "ForgedAnnotation", case.annotation)
        (note,) = said(kube, "InvalidAnnotation", case.annotation)
        assert "1e999" in note
        assert "remove it" in note.lower()


@pytest.mark.parametrize("text", ["rubbish", BROKEN, '{"by":"\\ud800"}', "[1]", '{"a":' * 200 + "1" + "}" * 200])
@pytest.mark.parametrize("annotation", [NOTICE, STAGED])
def test_whatever_nobody_could_read_is_no_forgery(annotation: str, text: str) -> None:
    with pytest.raises(AnnotationError, match="cannot be read") as raised:
        checks(annotation)[annotation](a_pod({annotation: text}))
    assert not isinstance(raised.value, ForgedError)


@pytest.mark.parametrize("case", UNDOING, ids=str)
async def test_a_record_of_a_hold_that_cannot_be_read_is_said_on_its_object(case: Case) -> None:
    kube = MemoryKube()
    replica = started(case, kube)
    kube.put(case.resource, case.hostile("rubbish"))
    async with running(replica) as task:
        await until(lambda: said(kube, "InvalidAnnotation", UNDO_ANNOTATION), task)
        assert "undoes everything" in said(kube, "InvalidAnnotation", UNDO_ANNOTATION)[0]


@pytest.mark.parametrize("case", [one for one in CASES if one.annotation in (NOTICE, DECISION, REQUEST)], ids=str)
@pytest.mark.parametrize("proof", ["none", "of another key"])
async def test_what_others_wrote_in_our_name_is_told_apart_from_what_cannot_be_read(case: Case, proof: str) -> None:
    kube = MemoryKube()
    replica = started(case, kube)
    document: dict[str, Any] = {"by": "kopt-preemption", "at": "2026-11-23T12:00:00Z"}
    text = json.dumps(document) if proof == "none" else Seal(b"k" * 32).sealed(case.annotation, UID, document)
    kube.put(case.resource, case.hostile(text))
    kube.put(case.resource, case.make({case.annotation: "rubbish"}) | {"metadata": _other(case)})
    async with running(replica) as task:
        await until(lambda: "InvalidAnnotation" in kube.events_on("b-other"), task)
        assert not said(kube, "InvalidAnnotation", case.annotation)
        # A request without a proof is its user's own: programs heed it, and no controller does.
        wanted = proof != "none" or case.annotation != REQUEST
        if wanted:
            await until(lambda: said(kube, "ForgedAnnotation", case.annotation), task)
        else:
            assert not said(kube, "ForgedAnnotation", case.annotation)


async def test_what_we_sealed_is_no_forgery() -> None:
    case = CASES[0]
    kube = MemoryKube()
    replica = started(case, kube)
    async with running(replica) as task:
        await until(lambda: case.scenario.handled(kube), task)
        found = case.hostile(SEAL.sealed(NOTICE, UID, {"by": "kopt-preemption", "at": "2026-11-23T12:00:00Z"}))
        kube.put(case.resource, found)
        kube.put(case.resource, case.make({NOTICE: "rubbish"}) | {"metadata": _other(case)})
        await until(lambda: "InvalidAnnotation" in kube.events_on("b-other"), task)
        assert not kube.events_on("a-hostile")


async def test_it_is_said_once_however_often_the_object_changes_and_whoever_reads_it() -> None:
    case = CASES[0]
    kube = MemoryKube()
    both = [started(case, kube), LEDGER.start(kube)]
    async with running(both[0]) as task, running(both[1]):
        await until(lambda: all(_leads(one) for one in both), task)
        kube.put(case.resource, case.hostile("rubbish"))
        await until(lambda: [_complaints(one) for one in both] == [1, 1], task)
        for number in range(20):
            kube.put(case.resource, case.hostile("rubbish", other=str(number)))
        kube.put(case.resource, case.make({NOTICE: "rubbish"}) | {"metadata": _other(case)})
        await until(lambda: all(_complaints(one) >= 2 for one in both), task)
        await until(lambda: "InvalidAnnotation" in kube.events_on("b-other"), task)
        assert [_complaints(one) for one in both] == [2, 2]
        assert len(said(kube, "InvalidAnnotation", NOTICE)) == 1


async def test_what_was_read_before_a_replica_led_is_said_when_it_leads() -> None:
    case = CASES[0]
    kube = MemoryKube()
    kube.put(case.resource, case.hostile("rubbish"))
    leads = started(case, kube)
    async with running(leads) as task:
        await until(lambda: _leads(leads), task)
        for one in kube.all(EVENTS):
            await kube.delete(EVENTS, one["metadata"]["name"], one["metadata"]["namespace"])
        follows = case.scenario.start(kube)
        async with running(follows) as other:
            await until(lambda: _complaints(follows) == 1.0, other)
            assert not said(kube, "InvalidAnnotation", NOTICE)
            await leads.stop()
            await until(lambda: said(kube, "InvalidAnnotation", NOTICE), other)


RECORD = {"labels": {"kaiwo.ai/held": "profiling"}, "resourceVersion": "1"}


@pytest.mark.parametrize("more", ['"x":1e999', '"x":12345678901234567890', '"x":' + "[" * 40 + "]" * 40, '"x":NaN'])
def test_a_record_of_a_hold_is_honoured_whatever_else_stands_in_it(more: str) -> None:
    """Its user had stopped the CronJob; what nobody needs must not have it started."""
    cron = Resource("batch", "v1", "cronjobs", "CronJob")
    annotations = {UNDO_ANNOTATION: '{"other":1,' + more + "}"}
    document = {"metadata": RECORD | {"annotations": annotations}, "spec": {"suspend": True}}
    assert "spec" not in release(cron, document)


def _leads(replica: LedReplica) -> bool:
    return bool(replica.registry.get_sample_value(f"kopt_{cast(Any, replica)._name}_leading"))


def _complaints(replica: LedReplica) -> float:
    name = cast(Any, replica)._name
    labels = {"controller": name, "kind": "Pod", "reason": "InvalidAnnotation"}
    return replica.registry.get_sample_value("kopt_object_errors_total", labels) or 0.0


def _other(case: Case) -> Object:
    return dict(case.hostile("rubbish")["metadata"] | {"name": "b-other", "uid": "uid-b"})
