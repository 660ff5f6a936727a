"""Looks at an API server in memory: who leads next goes on from the objects, and only what is ours is taken back."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import LEASE, node, pod, space
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import NODE_HEALTHS, NODES, PODS, Object
from kopt.cluster.holds.hold import hold_metadata, holder_of, undo_of
from kopt.cluster.holds.node_layout import LayoutPhase, LayoutState
from kopt.cluster.holds.node_taint import TAINT_KEY
from kopt.cluster.objects.custom.node_health import HealthRecord, record_of, status_of
from kopt.cluster.runtime.lease import TERM_ANNOTATION
from kopt.cluster.teardown.switch_off import switch_off
from kopt.controllers.health import main
from kopt.controllers.health.main import ProcessSettings, Replica
from kopt.controllers.health.reconciler import HealthSettings
from kopt.controllers.health.sources import by_node_name
from kopt.controllers.health.views import read_outcome
from kopt.core.decision import Mode
from kopt.core.hardware.health import Entry, Grade, NodeHealth, Outcome
from kopt.core.times import stamp

XID = "DCGM_FI_DEV_XID_ERRORS"
DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"


class Measured:
    """A Prometheus of these series."""

    def __init__(self, **series: float) -> None:
        self.series: dict[str, float] = series
        self.fails = False
        self._queries = asyncio.Semaphore(0)

    async def next_looks(self) -> None:
        """Until a look that begins from now on has ended: another has asked since."""
        while not self._queries.locked():
            await self._queries.acquire()
        for _ in range(2):
            await self._queries.acquire()

    async def __call__(self, query: str) -> list[tuple[dict[str, str], float]]:
        assert XID in query
        self._queries.release()
        if self.fails:
            raise PrometheusError("Unreachable", "Prometheus cannot be reached")
        return [({"__name__": name, "Hostname": "n0", "gpu": "1"}, value) for name, value in self.series.items()]


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are not gathered for longer than it takes to ask again."""
    monkeypatch.setattr(main, "_GATHER_S", 0.01)


def cluster(nodes: int = 4) -> MemoryKube:
    kube = MemoryKube()
    space(kube, "team")
    for number in range(nodes):
        kube.put(NODES, node(f"n{number}", **{"nvidia.com/gpu.product": "H100"}))
    return kube


async def lead(kube: MemoryKube, measured: Measured, until: Any, mode: Mode = Mode.ENFORCE) -> None:
    """A replica leads until something holds."""
    settings = ProcessSettings(lease=LEASE, health=HealthSettings(mode, 0.25, interval_s=0.05), port=0)
    replica = Replica(kube, settings, measured)  # type: ignore[arg-type]
    task = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(20):
            while not until():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
            # What must not happen would happen in the next look.
            await measured.next_looks()
    finally:
        await replica.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def status(kube: MemoryKube, name: str = "n0") -> Mapping[str, Any]:
    document = kube.find(NODE_HEALTHS, name)
    return document["status"] if document is not None else {}


def found(kube: MemoryKube, name: str = "n0") -> Object:
    document = kube.find(NODES, name)
    assert document is not None
    return document


def is_tainted(kube: MemoryKube, name: str = "n0") -> bool:
    return any(taint["key"] == TAINT_KEY for taint in found(kube, name)["spec"].get("taints") or ())


async def test_who_leads_next_counts_nothing_twice_and_forgets_nothing() -> None:
    kube, measured = cluster(), Measured(**{XID: 94.0, DBE: 3.0})
    await lead(kube, measured, lambda: status(kube))
    measured.series[DBE] = 5.0
    await lead(kube, measured, lambda: len(status(kube)["evidence"]) == 2)
    before = {item["code"]: item["count"] for item in status(kube)["evidence"]}
    assert before == {"XID_94": 1, "ECC_UNCORRECTABLE": 1}
    await lead(kube, measured, lambda: status(kube))
    assert {item["code"]: item["count"] for item in status(kube)["evidence"]} == before
    assert (status(kube)["verdict"], is_tainted(kube)) == ("Suspect", False)


async def test_nothing_is_taken_back_while_nothing_is_measured() -> None:
    kube, measured = cluster(), Measured(**{XID: 79.0})
    await lead(kube, measured, lambda: is_tainted(kube))
    measured.fails = True
    await lead(kube, measured, lambda: True)
    assert is_tainted(kube)


async def test_a_mode_that_acts_no_more_gives_back_what_is_ours_alone() -> None:
    kube, measured = cluster(), Measured(**{XID: 79.0})
    other = {"key": "example.com/x", "value": "", "effect": "PreferNoSchedule"}
    document = found(kube)
    document["spec"]["taints"] = [other]
    kube.put(NODES, document)
    before = found(kube)
    await lead(kube, measured, lambda: is_tainted(kube) and len(found(kube)["status"]["conditions"]) == 2)
    await lead(
        kube, measured, lambda: not found(kube)["metadata"]["labels"].get("kaiwo.ai/gpu-unhealthy"), Mode.ANNOTATE
    )
    after = found(kube)
    assert after["spec"]["taints"] == [other]
    assert after["status"] == before["status"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert set(after["metadata"]["annotations"]) == {TERM_ANNOTATION}
    assert status(kube)["verdict"] == "Condemned"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ANNOTATE])
async def test_only_in_mode_enforce_a_node_is_written(mode: Mode) -> None:
    kube, before = cluster(), found(cluster())
    await lead(kube, Measured(**{XID: 79.0}), lambda: status(kube).get("verdict") == "Condemned", mode)
    assert found(kube)["spec"] == before["spec"]
    assert found(kube)["status"] == before["status"]
    assert status(kube)["mode"] == mode.value


async def test_another_systems_condition_is_left_to_it() -> None:
    kube = cluster()
    document = found(kube)
    theirs = {"type": "GPUHealthy", "status": "False", "reason": "DcgmDiag", "message": "failed"}
    document["status"]["conditions"].append(theirs)
    kube.put(NODES, document)
    await lead(kube, Measured(**{XID: 79.0}), lambda: is_tainted(kube))
    assert [item for item in found(kube)["status"]["conditions"] if item["type"] == "GPUHealthy"] == [theirs]
    assert any(item["code"] == "OTHER_VERDICT" for item in status(kube)["evidence"])


async def test_a_node_that_is_held_for_something_else_keeps_its_hold() -> None:
    kube, measured = cluster(), Measured(**{XID: 79.0})
    marks = LayoutState("all-disabled", "all-1g.10gb", "all-1g.10gb", LayoutPhase.CUT, "", is_cordoned=False)
    held = hold_metadata("partitions", marks.undo())
    document = found(kube)
    document["metadata"]["labels"] |= held["labels"] | {"nvidia.com/mig.config": "all-1g.10gb"}
    document["metadata"].setdefault("annotations", {}).update(held["annotations"])
    kube.put(NODES, document)
    await lead(kube, measured, lambda: is_tainted(kube) and len(found(kube)["status"]["conditions"]) == 2)
    assert undo_of(found(kube)) == marks.undo()
    await lead(kube, measured, lambda: not is_tainted(kube), Mode.ANNOTATE)
    assert (holder_of(found(kube)), undo_of(found(kube))) == ("partitions", marks.undo())
    await lead(kube, measured, lambda: is_tainted(kube) and len(found(kube)["status"]["conditions"]) == 2)
    errors = [outcome.error async for outcome in switch_off(kube, held_kinds=(NODES,))]  # type: ignore[arg-type]
    assert not any(errors)
    after = found(kube)
    assert after["metadata"]["labels"]["nvidia.com/mig.config"] == "all-disabled"
    assert not is_tainted(kube)
    assert not holder_of(after)


async def test_switched_off_the_node_is_as_it_was() -> None:
    kube, before = cluster(), found(cluster())
    await lead(
        kube, Measured(**{XID: 79.0}), lambda: is_tainted(kube) and len(found(kube)["status"]["conditions"]) == 2
    )
    outcomes = [outcome async for outcome in switch_off(kube, held_kinds=(NODES,))]  # type: ignore[arg-type]
    assert [(outcome.step.name, outcome.error) for outcome in outcomes if outcome.step.resource == NODES] == [
        ("n0", "")
    ]
    after = found(kube)
    assert (after["spec"].get("taints") or [], after["status"]) == ([], before["status"])
    assert "kaiwo.ai/gpu-unhealthy" not in after["metadata"]["labels"]


async def test_where_others_keep_pods_away_there_is_no_taint_of_ours() -> None:
    kube = cluster()
    document = found(kube)
    document["spec"]["taints"] = [{"key": "nvsentinel.nvidia.com/fault", "effect": "NoSchedule"}]
    kube.put(NODES, document)
    await lead(kube, Measured(**{XID: 79.0}), lambda: len(found(kube)["status"]["conditions"]) == 2)
    assert not is_tainted(kube)


@pytest.mark.parametrize(
    ("state", "status", "fails"),
    [
        ({"exitCode": 1, "reason": "Error"}, {}, True),
        ({"exitCode": 134, "reason": "Error"}, {}, True),
        ({"exitCode": 137, "reason": "OOMKilled"}, {}, None),
        ({"exitCode": 127, "reason": "Error"}, {}, None),
        ({"exitCode": 143, "reason": "Error"}, {}, None),
        ({"exitCode": 1}, {"reason": "Evicted"}, None),
        ({"exitCode": 1}, {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, None),
    ],
)
def test_who_ends_a_pod_says_whether_it_counts(state: Object, status: Object, fails: bool | None) -> None:
    document = pod("train-7-abc", on="n0", gpus=4, job_name="train-7")
    document["status"] = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": state}}]} | status
    outcome = read_outcome(document)
    assert (outcome.failed if outcome is not None else None) is fails
    if outcome is not None:
        assert (outcome.job, outcome.family) == ("team/jobs/train-7", "team/train")
    assert PODS.kind == "Pod"


def test_exporters_call_nodes_by_short_names_and_addresses() -> None:
    names: Any = dict.fromkeys(("gpu-1.example.com", "gpu-2", "a.x", "a.y"))
    expected = {"gpu-1": "gpu-1.example.com", "gpu-2.example.com:9400": "gpu-2", "gpu-2": "gpu-2"}
    assert by_node_name([*expected, "a", "gpu-3"], names) == expected


TIMES = st.integers(0, 2**31).map(float)
ENTRIES = st.builds(
    Entry,
    st.sampled_from(["XID_79", "ECC_UNCORRECTABLE", "JOB_FAILURES"]),
    st.sampled_from(["", "0", "7"]),
    st.integers(0, 40_000).map(lambda load: load / 10_000),
    TIMES,
    TIMES,
    TIMES,
    st.integers(0, 100).map(float),
    st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=20),
    lasts=st.booleans(),
)


@given(st.lists(ENTRIES, max_size=8), st.lists(st.tuples(st.booleans(), TIMES), max_size=20), TIMES)
def test_an_object_says_all_that_is_known(entries: list[Entry], jobs: list[tuple[bool, float]], at_s: float) -> None:
    record = HealthRecord(
        "n0",
        NodeHealth(Grade.SUSPECT, 0.5, {"0": Grade.SUSPECT}, {"0": 0.5}),
        {(entry.code, entry.gpu): entry for entry in entries},
        {"X/0": 5.0},
        tuple(Outcome("n0", f"j{number}", failed, ended_s, "f") for number, (failed, ended_s) in enumerate(jobs)),
        "why",
        Mode.ANNOTATE,
        at_s,
        at_s,
        "boot",
        8,
    )
    assert record_of({"metadata": {"name": "n0"}, "status": status_of(record)}) == record


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["verdict", "score", "gpus", "evidence", "counters", "jobs", "code", "gpu", "at", "job"]
                ),
                inner,
            )
        ),
    )
)
def test_no_object_breaks_the_reader(status: Any) -> None:
    assert 0 <= record_of({"metadata": {"name": "n0"}, "status": status}).health.score <= 1


async def test_jobs_that_fail_on_one_node_alone_condemn_it() -> None:
    kube = cluster(6)
    for number in range(60):
        on = f"n{number % 6}"
        document = pod(f"job-{number}-x", on=on, gpus=4, job_name=f"job{'abcdefg'[number % 7]}-{number}")
        state = {"exitCode": int(on == "n0"), "finishedAt": stamp(time.time() - 6000 + 60 * number)}
        phase = "Failed" if on == "n0" else "Succeeded"
        document["status"] = {"phase": phase, "containerStatuses": [{"state": {"terminated": state}}]}
        kube.put(PODS, document)
    await lead(kube, Measured(), lambda: status(kube).get("verdict") == "Condemned")
    assert status(kube)["reason"].startswith("JOB_FAILURES, jobs fail here that do not fail on other nodes (10 of its")
    assert {status(kube, f"n{number}")["verdict"] for number in range(1, 6)} == {"Healthy"}
    # Its outcomes are on its object: who leads next knows them when the pods are gone.
    for document in kube.all(PODS):
        await kube.delete(PODS, document["metadata"]["name"], "team")
    await lead(kube, Measured(), lambda: True)
    assert (status(kube)["verdict"], len(status(kube)["jobs"])) == ("Condemned", 10)
