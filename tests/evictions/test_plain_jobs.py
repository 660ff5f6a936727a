"""Jobs without a queue: suspended, evicted through the API, deleted pods; each is one line, whoever restarts."""

from datetime import UTC, datetime, timedelta

import pytest
from controlplane.api import Api
from controlplane.kwok import Kwok
from controlplane.processes import wait_for

from .conftest import BATCH, Ledger, Start, job, sealed

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def stamp(ago_s: float = 0.0) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def evict(api: Api, pod: str, space: str) -> None:
    """What ``kubectl drain`` asks for."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": space}}
    api.request("POST", f"/api/v1/namespaces/{space}/pods/{pod}/eviction", json=body)


def test_a_suspended_job_is_one_line_and_is_seen_to_return(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    start()
    with kwok.nodes(2, gpus=4) as nodes:
        ledger.api.create(job("train", ledger.space, 2, nodes.selector, pods=3))
        pods = ledger.running("train", 3)
        ledger.annotate(
            pods,
            checkpoint_observed_at=stamp(10),
            last_checkpoint_step="1200",
            last_checkpoint_time=stamp(30),
            work_at_risk="180",
        )
        ledger.api.patch(*BATCH, "train", {"spec": {"suspend": True}}, ledger.space)
        line = ledger.phase("Waiting")
        spec = line["spec"]
        assert (spec["cause"], spec["system"], spec["gpus"], spec["for"]) == ("Suspended", "None", 6000, "")
        assert spec["workload"]["name"] == "train"
        assert (spec["workload"]["kind"], spec["workload"]["apiVersion"]) == ("Job", "batch/v1")
        assert spec["lastDurableStep"] == 1200
        # 180 at risk ten seconds before it stopped, and six GPUs since.
        assert 180 + 10 * 6 - 7 <= spec["lostGpuSeconds"] <= 180 + 90 * 6
        suspended = ledger.api.get(*BATCH, "train", ledger.space)["status"]["conditions"]
        at = next(one["lastTransitionTime"] for one in suspended if one["type"] == "Suspended")
        assert spec["evictedAt"] == at
        wait_for(lambda: not ledger.api.list("v1", "Pod", ledger.space))
        ledger.api.patch(*BATCH, "train", {"spec": {"suspend": False}}, ledger.space)
        again = ledger.running("train", 3)
        back = ledger.phase("Resumed")
        assert back["status"]["resumedAt"] >= spec["evictedAt"]
        ledger.annotate(again, checkpoint_observed_at=stamp(), first_step="1201")
        told = ledger.wait(lambda one: one["status"].get("verified"))
        assert (told["status"]["verified"], told["status"]["resumedStep"]) == ("Yes", 1201)
        assert told["spec"] == spec, "what happened does not change"
        ledger.api.delete(*BATCH, "train", ledger.space, propagationPolicy="Background")
        assert ledger.phase("Gone")["status"]["resumedAt"] == back["status"]["resumedAt"]


@pytest.mark.long
def test_a_job_that_never_ran_was_not_evicted(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    start()
    with kwok.nodes(1, gpus=4) as nodes:
        born = job("born-suspended", ledger.space, 1, nodes.selector)
        born["spec"]["suspend"] = True
        ledger.api.create(born)
        ledger.api.create(job("no-room", ledger.space, 8, nodes.selector))
        cpu = job("no-gpus", ledger.space, 1, nodes.selector)
        cpu["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
        ledger.api.create(cpu)
        ledger.running("no-gpus")
        for name in ("no-room", "no-gpus"):
            ledger.api.patch(*BATCH, name, {"spec": {"suspend": True}}, ledger.space)
        # One that was evicted comes after them: what was seen before it has been looked at.
        ledger.api.create(job("train", ledger.space, 1, nodes.selector))
        (pod,) = ledger.running("train")
        evict(ledger.api, pod["metadata"]["name"], ledger.space)
        assert ledger.wait()["spec"]["workload"]["name"] == "train"


def test_pods_evicted_through_the_api_are_one_line_with_their_notice(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    start()
    notice = {
        "by": "kopt-preemption",
        "cause": "Preempted",
        "for": "prod/urgent",
        "at": stamp(),
        "reason": "least work",
    }
    with kwok.nodes(1, gpus=8) as nodes:
        for name in ("plain", "ours"):
            ledger.api.create(job(name, ledger.space, 2, nodes.selector, pods=2))
            pods = ledger.running(name, 2)
            if name == "ours":
                for pod in pods:
                    ledger.annotate([pod], evicting=sealed(ledger.api, pod["metadata"]["uid"], notice))
            for pod in pods:
                evict(ledger.api, pod["metadata"]["name"], ledger.space)
            # Its Job makes new pods at once.
            wait_for(lambda name=name: ledger.phases().get(name) == "Resumed", what=f"{name} is back")
        assert len(ledger.lines()) == 2
        specs = {one["spec"]["workload"]["name"]: one["spec"] for one in ledger.lines()}
        plain, ours = specs["plain"], specs["ours"]
        assert (plain["cause"], plain["by"], plain["gpus"]) == ("Drained", "eviction API", 4000)
        assert (ours["cause"], ours["by"], ours["for"], ours["reason"]) == (
            "Preempted",
            "kopt-preemption",
            "prod/urgent",
            "least work",
        )
        assert "lastDurableStep" not in plain
        assert "lostGpuSeconds" not in plain


@pytest.mark.long
def test_a_deleted_pod_is_a_line_and_a_deleted_job_is_none(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    start()
    with kwok.nodes(1, gpus=8) as nodes:
        ledger.api.create(job("whole", ledger.space, 1, nodes.selector))
        ledger.running("whole")
        ledger.api.delete(*BATCH, "whole", ledger.space, propagationPolicy="Background")
        ledger.api.create(job("train", ledger.space, 1, nodes.selector))
        (pod,) = ledger.running("train")
        ledger.api.delete("v1", "Pod", pod["metadata"]["name"], ledger.space)
        line = ledger.phase("Resumed")["spec"]
        assert (line["workload"]["name"], line["cause"], line["gpus"]) == ("train", "Deleted", 1000)


def test_what_happens_while_it_is_dead_is_written_once_by_the_next(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    first = start()
    with kwok.nodes(1, gpus=8) as nodes:
        for name in ("one", "two"):
            ledger.api.create(job(name, ledger.space, 1, nodes.selector))
            ledger.running(name)
        ledger.api.patch(*BATCH, "one", {"spec": {"suspend": True}}, ledger.space)
        before = ledger.phase("Waiting")
        first.kill()
        # Its pods end while nobody looks.
        ledger.api.patch(*BATCH, "one", {"spec": {"suspend": False}}, ledger.space)
        ledger.running("one")
        (pod,) = ledger.running("two")
        slow = {"metadata": {"finalizers": ["kopt.test/slow"]}}
        ledger.api.patch("v1", "Pod", pod["metadata"]["name"], slow, ledger.space)
        evict(ledger.api, pod["metadata"]["name"], ledger.space)
        start(), start(leads=False)
        wait_for(lambda: len(ledger.lines()) == 2, what=f"two lines, there are {ledger.lines()}")
        ledger.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"finalizers": None}}, ledger.space)
        wait_for(lambda: all(one.get("status", {}).get("phase") == "Resumed" for one in ledger.lines()))
        kept, found = ledger.lines()
        assert (kept["metadata"]["uid"], kept["spec"]) == (before["metadata"]["uid"], before["spec"])
        assert (found["spec"]["workload"]["name"], found["spec"]["cause"]) == ("two", "Drained")


@pytest.mark.long
def test_the_other_replica_goes_on_with_what_it_saw(ledger: Ledger, kwok: Kwok, start: Start) -> None:
    leader, _ = start(), start(leads=False)
    with kwok.nodes(1, gpus=8) as nodes:
        ledger.api.create(job("train", ledger.space, 2, nodes.selector))
        pods = ledger.running("train")
        ledger.annotate(pods, checkpoint_observed_at=stamp(), last_checkpoint_step="7", last_checkpoint_time=stamp())
        # The leader sees nothing of it.
        leader.kill()
        ledger.api.patch(*BATCH, "train", {"spec": {"suspend": True}}, ledger.space)
        line = ledger.phase("Waiting")
        assert line["spec"]["lastDurableStep"] == 7, "although the pods are gone before it leads"
