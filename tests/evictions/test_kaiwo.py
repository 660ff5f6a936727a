"""What Kaiwo deletes because it idles is one line of the ledger, by Kaiwo, and is not expected back."""

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane

from .conftest import GPU, Ledger, Object, Start, job
from .test_plain_jobs import stamp

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
KAIWO = "kaiwo.silogen.ai/v1alpha1"


def made_for(kaiwo_job: Object, made: Object) -> Object:
    """A Job as Kaiwo makes it: owned, and with its labels on pods as well."""
    labels = {"kaiwo.silogen.ai/name": kaiwo_job["metadata"]["name"], "kaiwo.silogen.ai/type": "job"}
    owner = {"apiVersion": KAIWO, "kind": "KaiwoJob", "controller": True, "blockOwnerDeletion": True}
    made["metadata"]["labels"] |= labels
    made["metadata"]["ownerReferences"] = [owner | {key: kaiwo_job["metadata"][key] for key in ("name", "uid")}]
    made["spec"]["template"]["metadata"] = {"labels": labels}
    return made


def tracked(ledger: Ledger, name: str, owner: Object, **status: str) -> None:
    reference = {"apiVersion": KAIWO, "kind": "KaiwoJob"} | {key: owner["metadata"][key] for key in ("name", "uid")}
    spec = {"workloadRef": reference, "gpuResources": {GPU: 2}, "preemptionPolicy": "OnPressure"}
    meta = {"name": name, "namespace": ledger.space}
    ledger.api.create({"apiVersion": KAIWO, "kind": "GpuWorkload", "metadata": meta, "spec": spec})
    ledger.api.patch(KAIWO, "GpuWorkload", name, {"status": status}, ledger.space, "status")


def test_an_idle_kaiwo_job_that_kaiwo_deletes_is_in_the_ledger_once(
    plane: ControlPlane, ledger: Ledger, kwok: Kwok, start: Start
) -> None:
    plane.install_crds("kaiwo")
    start()
    jobs = {}
    for name in ("idle", "urgent"):
        meta = {"name": name, "namespace": ledger.space}
        jobs[name] = ledger.api.create({"apiVersion": KAIWO, "kind": "KaiwoJob", "metadata": meta, "spec": {"gpus": 2}})
    with kwok.nodes(1, gpus=2) as nodes:
        ledger.api.create(made_for(jobs["idle"], job("idle", ledger.space, 1, nodes.selector, pods=2)))
        pods = ledger.running("idle", 2)
        ledger.annotate(pods, checkpoint_observed_at=stamp(10), last_checkpoint_time=stamp(30), work_at_risk="60")
        tracked(ledger, "gw-urgent", jobs["urgent"], phase="PendingGpu")
        tracked(ledger, "gw-idle", jobs["idle"], phase="Idle", idleSince=stamp(900))
        assert ledger.lines() == []
        ledger.api.delete(KAIWO, "KaiwoJob", "idle", ledger.space, propagationPolicy="Background")
        said = {"preemptedAt": stamp(), "preemptedFor": "gw-urgent", "preemptionReason": "idle for 15m0s"}
        change = {"status": {"phase": "Preempted", "idleSince": None, **said}}
        ledger.api.patch(KAIWO, "GpuWorkload", "gw-idle", change, ledger.space, "status")
        spec = ledger.phase("Gone")["spec"]
        assert (spec["by"], spec["cause"], spec["reason"]) == ("kaiwo", "Preempted", "idle for 15m0s")
        assert (spec["workload"]["kind"], spec["workload"]["name"]) == ("KaiwoJob", "idle")
        assert (spec["for"], spec["gpus"]) == (f"{ledger.space}/urgent", 2000)
        assert spec["lostGpuSeconds"] >= 60
    for name in ("gw-idle", "gw-urgent"):
        ledger.api.delete(KAIWO, "GpuWorkload", name, ledger.space)
