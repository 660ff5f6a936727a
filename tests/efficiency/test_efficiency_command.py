"""``kopt efficiency`` on what a real Prometheus has recorded over a day."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from controlplane.plane import ControlPlane
from prometheus_server import RunningPrometheus
from typer.testing import CliRunner

from kopt.cli.cluster.efficiency import By, answer
from kopt.cli.local.pages.efficiency import gpu_hours_of
from kopt.cli.main import app
from kopt.core.workload.gpu_hours import GpuHours
from kopt.dashboard.data.gpu_hours import GpuHoursError
from kopt.dashboard.pages.efficiency.data import Efficiency
from kopt.dashboard.pages.efficiency.view import efficiency_page
from kopt.data.demand.prometheus import Server
from kopt.data.gpu_hours import NotRecordedError, read_gpu_hours
from kopt.policies.efficiency.groups import pool_hours
from tests.gpu_history import EVERY_S, Metric, history

DAY_S = 86_400.0
pytestmark = pytest.mark.services


def recorded() -> Iterator[Metric]:
    """Two nodes of eight GPUs; a training that has twelve all day and computes for three quarters of it, a service that
    has two for half of the day and hardly computes, and work that waits for six."""
    for node in ("a", "b"):
        yield Metric("node:kopt_gpus_installed:sum", {"node": node}, 8.0, DAY_S)
    yield Metric("node:kopt_gpus_available:sum", {"node": "a"}, 8.0, DAY_S)
    yield Metric("node:kopt_gpus_available:sum", {"node": "b"}, 7.0, DAY_S)
    late = DAY_S / 2
    for node, training, service in (("a", 8.0, 0.0), ("b", 4.0, 2.0)):
        for name, of_training, of_service in (
            ("node:kopt_gpus_allocated:sum", 1, 1),
            ("node:kopt_gpu_busy_ratio:count", 1, 1),
            ("node:kopt_gpu_busy_ratio:sum", 0.75, 0.1),
        ):
            held = training * of_training
            more = service * of_service
            yield Metric(name, {"node": node}, lambda left, held=held, more=more: held + more * (left < late), DAY_S)  # type: ignore[misc]
    training_of = {"namespace": "research", "kind": "PyTorchJob", "queue": "main"}
    service_of = {"namespace": "chat", "kind": "ReplicaSet"}
    waits = {"namespace": "research", "kind": "Job", "queue": "main"}
    level = "namespace_kind_queue:kopt_"
    for name, value, own in (("requested", 12.0, 2.0), ("allocated", 12.0, 2.0)):
        yield Metric(f"{level}gpus_{name}:sum", training_of, value, DAY_S)
        yield Metric(f"{level}gpus_{name}:sum", service_of, own, late - EVERY_S)
    yield Metric(f"{level}gpus_requested:sum", waits, 1.0, DAY_S)
    yield Metric(f"{level}gpu_busy_ratio:count", training_of, 12.0, DAY_S)
    yield Metric(f"{level}gpu_busy_ratio:sum", training_of, 9.0, DAY_S)
    yield Metric(f"{level}gpu_busy_ratio:count", service_of, 2.0, late - EVERY_S)
    yield Metric(f"{level}gpu_busy_ratio:sum", service_of, 0.2, late - EVERY_S)
    for state, gpus in (("used", 12.0), ("pending", 6.0)):
        labels = {"queue": "research", "pool": "h100", "state": state}
        yield Metric("queue_pool:kopt_queues_gpus:max", labels, gpus, DAY_S)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RunningPrometheus(tmp_path_factory.mktemp("prometheus"), history(*recorded()))
    yield server.url
    server.stop()


def rows(prometheus: str, *options: str) -> tuple[dict[str, dict[str, float]], dict[str, object]]:
    result = CliRunner().invoke(app, ["efficiency", "--prometheus", prometheus, *options, "-o", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return {row["name"]: row for row in document["rows"]}, document


def test_hours_by_kind_and_the_health_of_the_cluster(prometheus: str) -> None:
    by_kind, document = rows(prometheus)
    training, service, job = by_kind["PyTorchJob"], by_kind["Deployment"], by_kind["Job"]
    # A sample of the day's begin or end may fall outside.
    near = {"rel": 0.02}
    assert training["requested_gpu_hours"] == pytest.approx(12 * 24, **near)
    assert training["used_gpu_hours"] == pytest.approx(9 * 24, **near)
    assert training["efficiency"] == pytest.approx(0.75)
    assert service["allocated_gpu_hours"] == pytest.approx(2 * 12, **near)
    assert service["efficiency"] == pytest.approx(0.1)
    assert (job["allocated_gpu_hours"], job["efficiency"]) == (0, None)
    assert job["waited_gpu_hours"] == pytest.approx(24, **near)
    # 16 installed, 15 of them available; 18 asked for, so that what is free is free while work waits.
    spent = document["gpu_hours"]
    assert isinstance(spent, dict)
    assert spent["unavailable"] == pytest.approx(24, **near)
    assert spent["free_while_pending"] == pytest.approx(3 * 12 + 1 * 12, **near)
    assert spent["free"] == 0
    assert sum(value for name, value in spent.items() if name != "installed") == pytest.approx(spent["installed"])
    factors = document["factors"]
    assert isinstance(factors, dict)
    assert factors["available"] == pytest.approx(15 / 16, **near)
    assert factors["served"] == pytest.approx(13 / 15, **near)
    product = 100 * factors["available"] * factors["served"] * factors["computing"]
    assert document["health_index"] == pytest.approx(product, abs=0.05)
    assert document["coverage"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("by", "names"), [("namespace", {"research", "chat"}), ("queue", {"main", "(unattributed)"})])
def test_rows_by_other_owners_have_the_same_sum(prometheus: str, by: str, names: set[str]) -> None:
    by_kind, _ = rows(prometheus)
    by_other, _ = rows(prometheus, "--by", by)
    assert set(by_other) == names
    for column in ("requested_gpu_hours", "used_gpu_hours", "unused_gpu_hours"):
        sums = [sum(row[column] for row in each.values()) for each in (by_kind, by_other)]
        assert sums[0] == pytest.approx(sums[1])


def test_pages_read_the_same_and_say_where_nothing_is_recorded(prometheus: str) -> None:
    source = gpu_hours_of({"KOPT_PAGES_PROMETHEUS": prometheus})
    assert source is not None
    read = source.history(DAY_S)
    page = efficiency_page(Efficiency({"24h": read}, configured=True), "24h", "kind")
    assert page.index == f"{rows(prometheus)[1]['health_index']:.1f}"
    assert {row.name for row in page.rows} == {"PyTorchJob", "Deployment", "Job"}
    hour_s = 3600
    start_s = time.time() // hour_s * hour_s - 23 * hour_s
    waits = source.queue_waits(start_s - DAY_S, hour_s, 47)
    assert waits["research"][:10] == (None,) * 10
    assert waits["research"][24:46] == (6000.0,) * 22
    away = gpu_hours_of({"KOPT_PAGES_PROMETHEUS": "http://127.0.0.1:9"})
    assert away is not None
    with pytest.raises(GpuHoursError, match="GPU-hours cannot be read"):
        away.history(DAY_S)
    assert gpu_hours_of({}) is None


def test_pools_are_of_nodes_and_of_what_kueue_holds_back(prometheus: str) -> None:
    with Server(prometheus) as server:
        measured = read_gpu_hours(server, DAY_S)
    pools = pool_hours(measured, {"a": "h100"})
    assert pools["h100"].allocated == pytest.approx(8 * 24, rel=0.02)
    assert pools["h100"].waited == pytest.approx(6 * 24, rel=0.02)
    # Nothing that a node had is lost with the node.
    gone = pools["(nodes that are gone)"]
    assert gone.requested == gone.allocated == pytest.approx(4 * 24 + 2 * 12, rel=0.02)
    assert answer(By.POOL, measured, pools).rows


def test_a_person_reads_the_formula_with_its_figures(prometheus: str) -> None:
    result = CliRunner().invoke(app, ["efficiency", "--prometheus", prometheus], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    assert "100 x available x served x computing" in output
    assert "free while work waited" in output
    assert output.index("PyTorchJob") < output.index("Deployment")


def test_a_window_that_is_too_short_is_wrong_usage() -> None:
    assert CliRunner().invoke(app, ["efficiency", "--prometheus", "http://a", "--since", "1m"]).exit_code == 2


def test_a_prometheus_without_the_rules_says_which_to_install(prometheus: str) -> None:
    with Server(prometheus) as server, pytest.raises(NotRecordedError, match="kopt alerts rules"):
        # Before anything was recorded.
        read_gpu_hours(server, DAY_S, time.time() - 9 * DAY_S)


def test_hours_that_were_not_recorded_are_not_invented(prometheus: str) -> None:
    with Server(prometheus) as server:
        measured = read_gpu_hours(server, 2 * DAY_S)
    assert measured.coverage == pytest.approx(0.5, abs=0.02)
    total = sum(measured.by_workload.values(), GpuHours())
    assert total.used == pytest.approx((9 * 24 + 0.2 * 12), rel=0.02)


@pytest.mark.cluster
def test_teams_and_pools_come_from_the_cluster(
    control_plane: ControlPlane, prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, offered = control_plane.api, {"nvidia.com/gpu": "8"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": labels}})
    api.patch("v1", "Node", "a", {"status": {"allocatable": offered, "capacity": offered}}, "", "status")
    metadata = {"name": "research", "labels": {"kaiwo.ai/team": "llm"}}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    try:
        by_team, _ = rows(prometheus, "--by", "team")
        assert set(by_team) == {"llm", "(unattributed)"}
        assert by_team["llm"]["used_gpu_hours"] == pytest.approx(9 * 24, rel=0.02)
        by_pool, _ = rows(prometheus, "--by", "pool")
        # Kueue's pool has no flavor here: what it holds back is shown all the same.
        assert set(by_pool) == {"NVIDIA-L4", "(nodes that are gone)", "h100"}
        assert by_pool["NVIDIA-L4"]["allocated_gpu_hours"] == pytest.approx(8 * 24, rel=0.02)
    finally:
        api.delete("v1", "Node", "a")
        api.delete("v1", "Namespace", "research")


def test_what_pods_have_on_a_lost_node_is_not_unavailable_and_hides_no_free_gpu(tmp_path: Path) -> None:
    hour_s = 3600.0
    series = [Metric("node:kopt_gpus_installed:sum", {"node": node}, 8.0, hour_s) for node in ("a", "lost")]
    series += [Metric(f"node:kopt_gpus_{what}:sum", {"node": "a"}, 8.0, hour_s) for what in ("available", "free")]
    series.append(Metric("node:kopt_gpus_allocated:sum", {"node": "lost"}, 6.0, hour_s))
    server = RunningPrometheus(tmp_path, history(*series))
    try:
        _, document = rows(server.url, "--since=30m")
    finally:
        server.stop()
    spent = document["gpu_hours"]
    assert isinstance(spent, dict)
    hours = {name: value / spent["installed"] * 16 for name, value in spent.items()}
    assert {name: hours[name] for name in ("unavailable", "free", "unmeasured")} == pytest.approx(
        {"unavailable": 2, "free": 8, "unmeasured": 6}, abs=0.01
    )
