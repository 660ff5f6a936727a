"""Two runs of one name, one after the other or at once: neither their charges nor their epochs are mixed."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer, postgres

from kopt.cluster.workloads.owners import run_of
from kopt.controllers.meter.store import CostStore
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.report import CostEvent
from kopt.policies.cost.run import cost_of_run
from kopt.policies.cost.runs import RunError, epochs_of_run, run_named, runs_of
from kopt.serving.base.database.opening import Location
from tests.cost.metered import HOUR_MS, filled

__all__ = ["postgres"]
OLD, NEW = "11111111-old", "22222222-new"


def event(pod: str, uid: str, run: str, start_s: int, end_s: int) -> CostEvent:
    return CostEvent(
        f"n/{pod}", "node", 1000 * start_s, 1000 * end_s, 1000, 1000 * (end_s - start_s), None, None, uid, run
    )


EVENTS = (
    event("job-a", "pod-1", OLD, 0, 100),
    event("job-b", "pod-2", NEW, 150, 300),
    event("job-0", "9f", NEW, 150, 300),
)


def epochs(*starts_s: int) -> list[Epoch]:
    return [Epoch(number, float(at_s), at_s + 10.0) for number, at_s in enumerate(starts_s, start=1)]


def starts(uid: str, sources: dict[str, list[Epoch]]) -> list[float]:
    runs = runs_of(EVENTS)
    return [item.start_s for item in epochs_of_run(run_named(runs, uid), runs, sources)]


def test_epochs_are_of_the_run_whose_pod_printed_them() -> None:
    # The old job's pod was still printing when the new one had begun.
    sources = {"agent/job-a/main": epochs(10, 20, 160), "agent/job-b/main": epochs(155, 200)}
    assert starts(OLD, sources) == [10, 20, 160]
    assert starts(NEW, sources) == [155, 200]
    assert starts("", sources) == [155, 200], "the latest"
    by_uid = {"agent/job-0@9f/main": epochs(170), "agent/job-0@11/main": epochs(180)}
    assert (starts(NEW, by_uid), starts(OLD, by_uid)) == ([170, 180], []), "an unknown pod's by its time"


def test_epochs_of_an_unknown_source_are_of_the_run_in_whose_time_they_began() -> None:
    sources = {"agent/host": epochs(10, 120, 200, 400)}
    assert (starts(OLD, sources), starts(NEW, sources)) == ([10], [200])


def test_a_run_is_named_by_the_begin_of_its_uid() -> None:
    runs = runs_of(EVENTS)
    assert [run.uid for run in runs] == [OLD, NEW]
    for uid, word in (("3", "no run has a UID that begins with '3'; there are 11111111, 22222222"),):
        with pytest.raises(RunError, match=word):
            run_named(runs, uid)
    with pytest.raises(RunError, match="several runs have"):
        run_named(runs_of([event("a", "1", "aa", 0, 1), event("b", "2", "ab", 0, 1)]), "a")
    with pytest.raises(RunError, match="nothing was charged"):
        run_named((), "")
    cost = cost_of_run("n/jobs/job", runs[0], runs, [])
    assert (cost.uid, cost.runs, cost.whole.end_ms) == (OLD, (OLD, NEW), 100_000)
    assert cost.remarks[0].startswith("2 runs have this name in this time. This is 11111111; the others: 22222222 (")


@pytest.mark.parametrize(
    ("owner", "labels", "run"),
    [
        ({"kind": "Job", "uid": "j"}, {}, "j"),
        ({"kind": "Job", "uid": "j"}, {"jobset.sigs.k8s.io/jobset-name": "s"}, ""),
        (
            {"kind": "Job", "uid": "j"},
            {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/jobset-uid": "s-1"},
            "s-1",
        ),
        ({"kind": "ReplicaSet", "uid": "r"}, {}, ""),
        (None, {}, "p"),
    ],
)
def test_what_tells_runs_apart(owner: dict[str, str] | None, labels: dict[str, str], run: str) -> None:
    references = [{"kind": "Other", "uid": "x"}, *([{**owner, "controller": True}] if owner else [])]
    metadata = {"uid": "p", "labels": labels, "ownerReferences": references}
    assert run_of({"metadata": metadata}) == run


def _now_ms() -> int:
    return int(time.time() * 1000)


def pods() -> list[tuple[Any, ...]]:
    return [
        ("a", "n", "job-a", "jobs/job", "n1", 4, {}, OLD),
        ("b", "n", "job-b", "jobs/job", "n1", 2, {}, NEW),
    ]


@pytest.fixture(params=["sqlite", "postgres"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A database as releases without runs have left it."""
    where: Location = tmp_path / "cost.db"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        where = server.new_database()
    costs = filled(where, [pod[:-1] for pod in pods()], _now_ms() - 24 * HOUR_MS)
    with costs.store.database.transaction() as transaction:
        transaction.execute("ALTER TABLE cost_pods DROP COLUMN run")
    costs.store.close()
    return where


def test_a_database_of_an_earlier_release_goes_on_and_tells_new_pods_apart(earlier: Location) -> None:
    store = CostStore(earlier)
    assert {pod.run for pod in store.attributes().values()} == {""}
    store.close()
    later = filled(earlier, pods(), _now_ms())
    assert {uid: pod.run for uid, pod in later.store.attributes().items()} == {"a": OLD, "b": NEW}
    later.store.close()


def test_two_processes_may_open_it_first(tmp_path: Path) -> None:
    path = tmp_path / "cost.db"
    for store in (CostStore(path), CostStore(path, read_only=True)):
        assert store.attributes() == {}
        store.close()
    names = [row[1] for row in sqlite3.connect(path).execute("PRAGMA table_info(cost_pods)")]
    assert names.count("run") == 1
