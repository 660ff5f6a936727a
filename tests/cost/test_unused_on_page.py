"""What pods held while no kernel ran: from a real Prometheus to the page, ``GET /v1/cost`` and ``kopt.cost()``."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from cryptography.fernet import Fernet
from gpu_history import Metric, dcgm, history
from pages_source import FixedSource
from prometheus_server import RunningPrometheus

from kopt.cli.local.pages.costs import MeterDatabase, costs_of
from kopt.cli.local.pages.prometheus import FAILED_S, KEPT_S, PodActivities, prometheus_of
from kopt.core.cost.metering import GPU_HOUR
from kopt.core.scheduling.overview import Overview
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cost.data import COSTS, CostState
from kopt.policies.cost.attribution import By
from kopt.policies.cost.documents import report_document, report_of
from kopt.policies.cost.report import CostQuestion
from tests.cost.metered import HOUR_MS, filled
from tests.dashboard.test_login import KnownUsers

pytestmark = pytest.mark.services
ADDRESS = "http://127.0.0.1:8701"
BUSY = {("team-a", "train-0"): 0.25, ("team-b", "secret-of-b"): 0.9}
"""The other two pods are not measured."""


@dataclass(frozen=True)
class Measured:
    prometheus: RunningPrometheus
    costs: MeterDatabase
    environ: dict[str, str]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    folder = tmp_path_factory.mktemp("unused")
    series = [
        Metric(name, dcgm(namespace, pod), value)
        for (namespace, pod), share in BUSY.items()
        for name, value in (("DCGM_FI_PROF_GR_ENGINE_ACTIVE", share), ("DCGM_FI_DEV_FB_USED", 1000.0))
    ]
    prometheus = RunningPrometheus(folder, history(*series))
    filled(folder / "cost.db").store.close()
    environ = {"KOPT_PAGES_PROMETHEUS": prometheus.url}
    settings = Settings(home=folder, state_dir=folder)
    yield Measured(prometheus, costs_of(environ, settings), environ)
    prometheus.stop()


async def ask(costs: MeterDatabase, home: Path, path: str, token: str) -> httpx.Response:
    overview = Overview(cluster=True, now_s=1.9e9)
    state = CostState(costs, costs.recorded())
    source = FixedSource({SNAPSHOT: Snapshot({}, Endpoint(ADDRESS), 1.9e9), COSTS: state, OVERVIEW: overview})
    login = Login(KnownUsers(), Sessions(Fernet.generate_key().decode(), secure=False), "kopt")
    app = create_app(Settings(home=home), source=source, login=login)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as client:
        if not path.startswith("/v1/"):
            await client.post("/login", data={"token": token}, headers={"origin": ADDRESS})
        return await client.get(path)


async def test_what_no_kernel_ran_in_reaches_endpoint_page_and_notebook(measured: Measured, tmp_path: Path) -> None:
    answer = (await ask(measured.costs, tmp_path, "/v1/cost?by=pod&since=1d", "token-of-root")).json()
    used = {row["name"]: int(row["milli_gpu_ms"]) for row in answer["costs"]}
    unused = {row["name"]: row for row in answer["unused"]}
    for (namespace, pod), share in BUSY.items():
        row = unused[f"{namespace}/{pod}"]
        assert int(row["milli_gpu_ms"]) == pytest.approx(used[f"{namespace}/{pod}"] * (1 - share), rel=1e-6)
        assert row["unmeasured_milli_gpu_ms"] == "0"
    assert unused["team-c/batch-0"]["unmeasured_milli_gpu_ms"] == str(used["team-c/batch-0"])
    hours = sum(int(row["milli_gpu_ms"]) for row in unused.values()) / GPU_HOUR
    assert answer["unused_gpu_hours"] == pytest.approx(hours)

    html = (await ask(measured.costs, tmp_path, "/cost?by=pod&since=1d", "token-of-root")).text
    assert f"{hours:,.1f} GPU-hours" in html
    assert "of it unused" in html
    assert "were not measured" in html
    report = report_of(answer)
    assert json.loads(json.dumps(report_document(report))) == answer
    assert "of it unused" in report._repr_html_()


async def test_a_tenant_sees_the_unused_of_their_own_pods_alone(measured: Measured, tmp_path: Path) -> None:
    answer = (await ask(measured.costs, tmp_path, "/v1/cost?by=pod&since=1d", "token-of-a")).json()
    assert {row["name"] for row in answer["unused"]} == {"team-a/train-0", "team-a/serve-0"}
    html = (await ask(measured.costs, tmp_path, "/cost?by=pod&since=1d", "token-of-a")).text
    assert "of it unused" in html
    assert "secret-of-b" not in html


def test_every_grouping_has_the_same_unused_in_all(measured: Measured) -> None:
    now_ms = int(time.time() * 1000)
    reports = [measured.costs.report(CostQuestion(now_ms - 24 * HOUR_MS, now_ms, by)) for by in By]
    sums = {(report.unused_in_all.used, report.unused_in_all.unmeasured) for report in reports if report.unused_in_all}
    assert len(reports) == len(By)
    assert len({unmeasured for _, unmeasured in sums}) == 1
    assert max(used for used, _ in sums) - min(used for used, _ in sums) <= len(BUSY)


def test_readings_are_kept_a_while_and_a_silent_prometheus_is_told(
    measured: Measured, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("silent")
    series = [Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", dcgm(*pod), share) for pod, share in BUSY.items()]
    memory = [Metric("DCGM_FI_DEV_FB_USED", dcgm(*pod), 1.0) for pod in BUSY]
    prometheus = RunningPrometheus(folder, history(*series, *memory))
    opened, now_s = prometheus_of({"KOPT_PAGES_PROMETHEUS": prometheus.url}), [0.0]
    assert opened is not None
    activities: Callable[[int, int], object] = PodActivities(opened, lambda: now_s[0])
    window = (time.time_ns() // 10**6 - 24 * HOUR_MS, time.time_ns() // 10**6)
    assert activities(*window) == pytest.approx(BUSY)
    prometheus.stop()
    now_s[0] = KEPT_S - 1
    assert activities(*window) == pytest.approx(BUSY)
    now_s[0] = KEPT_S + 1
    assert activities(*window) is None
    assert "was not read" in activities.problem  # type: ignore[attr-defined]
    failed_at_s, now_s[0] = now_s[0], now_s[0] + FAILED_S - 1
    assert activities(*window) is None
    now_s[0] = failed_at_s + FAILED_S + 1
    assert activities(*window) is None


async def test_without_an_answer_costs_are_shown_and_the_page_says_what_is_missing(
    measured: Measured, tmp_path: Path
) -> None:
    where = tmp_path / "cost.db"
    filled(where).store.close()
    settings = Settings(home=tmp_path, state_dir=tmp_path)
    costs = costs_of({"KOPT_PAGES_PROMETHEUS": "http://127.0.0.1:9"}, settings)
    answer = (await ask(costs, tmp_path, "/v1/cost?since=1d", "token-of-root")).json()
    assert answer["unused"] is None
    assert answer["costs"]
    html = (await ask(costs, tmp_path, "/cost?since=1d", "token-of-root")).text
    assert "was not read" in html
