"""SMs of pods and pressure on nodes from a real Prometheus with the series that exporters write."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kopt.core.sharing.pressure import Pressure, SmUse
from kopt.data.demand.prometheus import Server
from kopt.data.sm_activity import read_pressure, read_sm_use
from tests.gpu_history import Metric, dcgm, history
from tests.prometheus_server import RunningPrometheus

pytestmark = pytest.mark.services
SPAN_S = 3600.0
ACTIVE, ENGINE, USED, FREE = (
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
)
OURS = {"namespace": "lab", "pod": "ours", "node": "node-2", "gpu": "0"}
SHARED = {"namespace": "", "pod": "", "node": "node-2", "gpu": "1"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    served = RunningPrometheus(
        folder,
        history(
            Metric(ACTIVE, dcgm("lab", "chat"), 0.1, SPAN_S),
            Metric(ENGINE, dcgm("lab", "chat"), 0.25, SPAN_S),
            Metric(ACTIVE, dcgm("lab", "moved", 1, moved=True), 0.6, SPAN_S),
            Metric(ENGINE, dcgm("lab", "moved", 1, moved=True), 0.5, SPAN_S),
            Metric(ACTIVE, dcgm("lab", "quiet", 2), 0.004, SPAN_S),
            Metric(ENGINE, dcgm("lab", "quiet", 2), 0.01, SPAN_S),
            Metric(USED, dcgm("lab", "chat"), 60_000, SPAN_S),
            Metric(FREE, dcgm("lab", "chat"), 20_000, SPAN_S),
            Metric("kopt_gpu_sm_active_ratio", OURS, 0.3, SPAN_S),
            Metric("kopt_gpu_sm_active_ratio", SHARED, 0.9, SPAN_S),
            Metric("kopt_gpu_busy_ratio", OURS, 0.3, SPAN_S),
            Metric("kopt_gpu_memory_used_bytes", SHARED, 30.0, SPAN_S),
            Metric("kopt_gpu_memory_total_bytes", SHARED, 60.0, SPAN_S),
            Metric("latency_ratio", {"namespace": "lab", "pod": "chat"}, 1.4, SPAN_S),
        ),
    )
    try:
        with Server(served.url) as asked:
            yield asked
    finally:
        served.stop()


def test_what_pods_use_and_fill(server: Server) -> None:
    uses = read_sm_use(server, SPAN_S, time.time())
    assert uses["lab", "chat"] == SmUse(pytest.approx(0.1), pytest.approx(0.4))
    # More SMs than time cannot be: readings of two counters.
    assert uses["lab", "moved"] == SmUse(pytest.approx(0.6), pytest.approx(1.0))
    assert uses["lab", "ours"] == SmUse(pytest.approx(0.3), pytest.approx(1.0))
    # Hardly ever busy: it may fill all of them when it is.
    assert uses["lab", "quiet"] == SmUse(pytest.approx(0.004), 1.0)
    assert {name for _, name in uses} == {"chat", "moved", "ours", "quiet"}


def test_the_pressure_on_nodes_and_the_slow_down_of_pods(server: Server) -> None:
    pressures, slowdowns = read_pressure(server, SPAN_S / 2, time.time(), "latency_ratio")
    assert pressures["node-1"][-1][1] == Pressure(None, pytest.approx(0.6), pytest.approx(0.75))
    assert pressures["node-2"][-1][1] == Pressure(None, pytest.approx(0.9), pytest.approx(0.5))
    assert slowdowns["lab", "chat"][-1][1] == pytest.approx(1.4)
    assert len(pressures["node-1"]) > 10
