"""What is held is marked with how to undo it, and ``kopt off`` undoes it on a real cluster, whatever kind it is."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cluster.holdable import JOB, SPECS, TEMPLATE
from controlplane.plane import ControlPlane

from kopt.cluster.client.api import Conflict, Kube, connect
from kopt.cluster.client.resources import CRON_JOBS, DEPLOYMENTS, JOBS, KUEUE_WORKLOADS, PODS, Object, Resource
from kopt.cluster.holds.hold import (
    HELD_LABEL,
    HOLDABLE,
    UNDO_ANNOTATION,
    HoldError,
    hold,
    hold_metadata,
    holder_of,
    release,
)
from kopt.cluster.teardown.switch_off import switch_off

QUEUE = {"kueue.x-k8s.io/queue-name": "research"}
KINDS = {resource.kind: resource for resource in HOLDABLE}


@pytest.fixture
async def kube(hurt_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with connect(hurt_plane.kubeconfig) as client:
        yield client


@pytest.fixture(scope="module")
def frameworks(hurt_plane: ControlPlane) -> None:
    hurt_plane.install_crds("jobset", "trainer", "training-operator", "kuberay")


async def off(kube: Kube, namespace: str) -> list[tuple[str, str, str]]:
    """What was released: kind, name, holder. Everything else that is off stays as it was."""
    outcomes = [one async for one in switch_off(kube, namespace=namespace, wait_s=5)]
    assert [one for one in outcomes if one.error] == []
    return [
        (one.step.resource.kind, one.step.name, one.step.detail) for one in outcomes if one.step.action == "release"
    ]


async def made(kube: Kube, resource: Resource, namespace: str, spec: Object, **metadata: Any) -> Object:
    meta = {"name": "one", "namespace": namespace} | metadata
    return await kube.create(resource, {"metadata": meta, "spec": spec})


async def held_by(kube: Kube, known: Resource, resource: Resource, namespace: str) -> Object:
    """Held as a controller does it: again when somebody else was faster."""
    while True:
        with contextlib.suppress(Conflict):
            seen = await kube.get(resource, "one", namespace)
            return await kube.patch(resource, "one", hold(known, seen, "profiling"), namespace)


async def served(kube: Kube, resource: Resource) -> Resource:
    """The kind in a version that there is: the MPI operator's, or the training operator's."""
    found = resource if await kube.serves(resource) else await kube.preferred(resource)
    assert found is not None
    return found


@pytest.mark.cluster
@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("kind", SPECS)
async def test_off_lets_run_what_a_controller_holds(kube: Kube, namespace: str, kind: str) -> None:
    known = KINDS[kind]
    resource = await served(kube, known)
    await made(kube, resource, namespace, SPECS[kind])
    held = await held_by(kube, known, resource, namespace)
    assert holder_of(held) == "profiling"
    assert '"suspend": true' in json.dumps(held["spec"])
    assert await off(kube, namespace) == [(kind, "one", "profiling")]
    after = await kube.get(resource, "one", namespace)
    assert '"suspend": true' not in json.dumps(after["spec"])
    assert HELD_LABEL not in (after["metadata"].get("labels") or {})
    assert UNDO_ANNOTATION not in (after["metadata"].get("annotations") or {})
    assert await off(kube, namespace) == []


@pytest.mark.cluster
async def test_a_hold_of_something_that_changed_meanwhile_is_refused(kube: Kube, namespace: str) -> None:
    seen = await made(kube, JOBS, namespace, JOB)
    await kube.patch(JOBS, "one", {"spec": {"suspend": True}}, namespace)
    with pytest.raises(Conflict):
        await kube.patch(JOBS, "one", hold(JOBS, seen, "profiling"), namespace)


@pytest.mark.cluster
async def test_gates_are_taken_away_as_noted_and_those_of_others_stay(kube: Kube, namespace: str) -> None:
    gates = [{"name": name} for name in ("kaiwo.ai/staging", "kaiwo.ai/later", "other.io/quota")]
    noted = hold_metadata("staging", {"gates": ["kaiwo.ai/staging", "other.io/quota"]})
    await made(kube, PODS, namespace, TEMPLATE["spec"] | {"schedulingGates": gates}, **noted)
    assert await off(kube, namespace) == [("Pod", "one", "staging")]
    left = (await kube.get(PODS, "one", namespace))["spec"]["schedulingGates"]
    assert [gate["name"] for gate in left] == ["kaiwo.ai/later", "other.io/quota"]


@pytest.mark.cluster
async def test_a_suspended_cron_job_of_which_only_something_else_is_noted_stays_suspended(
    kube: Kube, namespace: str
) -> None:
    await made(
        kube, CRON_JOBS, namespace, SPECS["CronJob"] | {"suspend": True}, **hold_metadata("lending", {"other": 1})
    )
    assert await off(kube, namespace) == [("CronJob", "one", "lending")]
    assert (await kube.get(CRON_JOBS, "one", namespace))["spec"]["suspend"] is True


def stored(spec: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": "one", "resourceVersion": "7"} | metadata, "spec": spec or {}}


@pytest.mark.parametrize(
    ("resource", "document", "why"),
    [
        (DEPLOYMENTS, stored(), "cannot be held"),
        (JOBS, stored(labels=QUEUE), "hold its Workload"),
        (JOBS, stored({"suspend": True}), "stopped by others"),
        (KUEUE_WORKLOADS, stored({"active": False}), "stopped by others"),
        (JOBS, stored(labels={HELD_LABEL: "lending"}), "held by lending"),
    ],
)
def test_what_must_not_be_held_is_not(resource: Resource, document: Object, why: str) -> None:
    with pytest.raises(HoldError, match=why):
        hold(resource, document, "profiling")


def test_holding_again_writes_the_same() -> None:
    first = hold(JOBS, stored(), "profiling")
    again = stored({"suspend": True}, labels=first["metadata"]["labels"])
    assert hold(JOBS, again, "profiling") == first


@pytest.mark.parametrize("text", ["", "rubbish", "[1]", "[" * 5000])
def test_an_annotation_that_cannot_be_read_undoes_everything(text: str) -> None:
    held = stored({"suspend": True}, labels={HELD_LABEL: "x"}, annotations={UNDO_ANNOTATION: text})
    assert release(JOBS, held)["spec"] == {"suspend": False}
