"""The agent as a process, from NVML and the kubelet's socket to what Prometheus and the product read of it."""

import http.server
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from controlplane.kubelet import DeviceManager
from controlplane.processes import free_port, wait_for
from controlplane.warm import KOPT
from nvml_standin.devices import Devices
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.data.demand.prometheus import Server
from kopt.data.gpu_use import read_gpu_use
from kopt.formats.gpu_metrics.health import read_health
from tests.prometheus_server import RunningPrometheus
from tests.telemetry import recorded

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the stand-in of NVML")
GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-3g.40gb"


def pod(name: str, resource: str) -> dict[str, object]:
    containers = [{"name": "main", "resources": {"limits": {resource: "1"}}}]
    return {"metadata": {"namespace": "research", "name": name, "uid": name}, "spec": {"containers": containers}}


class Agent:
    def __init__(self, folder: Path, devices: Devices, *options: str) -> None:
        self.port = free_port()
        command = [*KOPT, "agent", "telemetry", f"--node={recorded.NODE}", f"--port={self.port}"]
        command += ["--interval=0.5", "--timeout=1", "--stale=2", *options]
        with (folder / "agent.log").open("wb") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **devices.environment}, stderr=log)

    def text(self, path: str = "/metrics") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
            return str(answer.read().decode())

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Of a metric, by these labels."""
        families = text_string_to_metric_families(self.text())
        every = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(sample.labels.get(label, "") for label in labels): sample.value for sample in every}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        wait_for(holds, timeout_s=30, what=what)

    def stop(self) -> int:
        self._process.terminate()
        return self._process.wait(10)


@pytest.fixture
def devices(tmp_path: Path) -> Devices:
    result = Devices(tmp_path / "gpus", gpus=3)
    for number, activity in enumerate(result.state.activity[:3]):
        activity.gpm, activity.busy, activity.used, activity.power_mw = 1, 50, (number + 1) << 30, 400_000
    result.cut(2, ("1g.10gb", 0), ("3g.40gb", 4))
    result.state.activity[2].instance_used[1] = 9 << 30
    return result


@pytest.fixture
def kubelet(devices: Devices) -> Iterator[DeviceManager]:
    shares = [f"{devices.uuid(1)}::{number}" for number in range(2)]
    offered = {GPU: [devices.uuid(0)], f"{GPU}.shared": shares, MIG: ["MIG-00000002-0000-0000-0000-000000000002"]}
    manager = DeviceManager(offered)
    for name, resource in (("alone", GPU), ("left", f"{GPU}.shared"), ("right", f"{GPU}.shared"), ("part", MIG)):
        manager.admit(pod(name, resource))
    try:
        yield manager
    finally:
        manager.stop()


@pytest.mark.services
def test_prometheus_and_the_product_read_it_as_other_exporters(
    tmp_path: Path, devices: Devices, kubelet: DeviceManager
) -> None:
    agent = Agent(tmp_path, devices, f"--pod-resources={kubelet.pod_resources}")
    configuration = f"""
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: telemetry
  honor_labels: true
  static_configs: [{{targets: ['127.0.0.1:{agent.port}'], labels: {{namespace: kopt-agents, pod: kopt-telemetry-x}}}}]
"""
    prometheus = RunningPrometheus(tmp_path, configuration=configuration)
    try:
        agent.until(lambda: agent.values("kopt_gpu_busy_ratio") != {}, "a second reading")
        assert agent.values("kopt_gpu_pod_share_ratio", "pod") == {
            ("alone",): 1.0,
            ("left",): 0.5,
            ("right",): 0.5,
            ("part",): 1.0,
        }
        by_pod = agent.values("kopt_gpu_memory_used_bytes", "pod", "gpu", "partition")
        assert by_pod == {
            ("alone", "0", ""): 1 << 30,
            ("", "1", ""): 2 << 30,
            ("", "2", "1"): 0,
            ("part", "2", "2"): 9 << 30,
        }
        with Server(prometheus.url) as server:
            wait_for(
                lambda: len(server.query_range("kopt_gpu_busy_ratio", time.time(), time.time(), 1)) == 4,
                timeout_s=30,
                what="scrapes",
            )
            uses = read_gpu_use(server, 60).uses
            assert {name for _, name in uses} == {"alone", "left", "right", "part"}
            shown = {name: (use.peak_bytes, use.shared, use.partition) for (_, name), use in uses.items()}
            assert shown == {
                "alone": (1 << 30, False, False),
                "left": (2 << 30, True, False),
                "right": (2 << 30, True, False),
                "part": (9 << 30, False, True),
            }
            assert uses["research", "alone"].activity == pytest.approx(0.5)
    finally:
        prometheus.stop()
        assert agent.stop() == 0


def test_nothing_hangs_and_nothing_lies(tmp_path: Path, devices: Devices, kubelet: DeviceManager) -> None:
    agent = Agent(tmp_path, devices, f"--pod-resources={kubelet.pod_resources}")
    try:
        agent.until(lambda: len(agent.values("kopt_gpu_power_watts", "gpu")) == 3, "a reading")
        devices.xid(0, 79)
        agent.until(lambda: agent.values("kopt_gpu_xid_errors_total", "gpu", "xid") == {("0", "79"): 1.0}, "the XID")
        series = [(s.name, s.labels, s.value) for f in text_string_to_metric_families(agent.text()) for s in f.samples]
        evidence = read_health(series, {}, 0.0, 60.0).evidence[recorded.NODE]
        assert [(one.code, one.gpu) for one in evidence if one.code.startswith("XID")] == [("XID_79", "0")]
        devices.state.activity[0].lost = 1
        agent.until(lambda: agent.values("kopt_gpu_up", "gpu")["0",] == 0.0, "the GPU is gone")
        assert set(agent.values("kopt_gpu_power_watts", "gpu")) == {("1",), ("2",)}
        # The kubelet is away: after a while nobody is named; the GPUs still are.
        kubelet.stop()
        agent.until(lambda: agent.values("kopt_gpu_held") == {}, "nobody is named")
        assert agent.values("kopt_gpu_power_watts", "pod") == {("",): 400.0}
        devices.state.activity[1].hangs = 1
        agent.until(lambda: agent.values("kopt_gpu_power_watts") == {}, "no figures")
        begin_s = time.monotonic()
        # Nobody knows which of them answer.
        assert agent.values("kopt_gpu_up", "gpu") == {}
        assert time.monotonic() - begin_s < 1
        assert agent.values("kopt_telemetry_readings_total", "outcome")["timeout",] >= 1
        devices.state.activity[1].hangs = 0
        agent.until(lambda: len(agent.values("kopt_gpu_power_watts", "gpu")) == 2, "figures again")
    finally:
        assert agent.stop() == 0


def test_xids_wait_for_no_reading_and_the_few_series_of_faults_have_a_path(tmp_path: Path, devices: Devices) -> None:
    agent = Agent(tmp_path, devices, "--interval=60", "--stale=120", "--fault-interval=0.2")
    try:
        agent.until(lambda: len(agent.values("kopt_gpu_up", "gpu")) == 3, "the only reading")
        assert "recent_xid_errors" not in agent.text("/metrics/faults")
        devices.xid(1, 79, 45)
        faults = lambda: agent.text("/metrics/faults")  # noqa: E731
        agent.until(lambda: 'xid="79"' in faults(), "the XID")
        families = list(text_string_to_metric_families(faults()))
        assert {family.name for family in families} == {"kopt_gpu_up", "kopt_gpu_recent_xid_errors"}
        series = {(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples}
        assert len(series) == 5
        every = [sample for family in text_string_to_metric_families(agent.text()) for sample in family.samples]
        assert series < {(sample.name, *sorted(sample.labels.items())) for sample in every}
        assert agent.values("kopt_gpu_xid_errors_total", "gpu", "xid") == {("1", "79"): 1.0, ("1", "45"): 1.0}
        assert sum(agent.values("kopt_telemetry_readings_total", "outcome").values()) == 1
    finally:
        assert agent.stop() == 0


def test_an_exporter_of_the_node_is_read_and_no_gpu_is(tmp_path: Path, devices: Devices) -> None:
    answers = [recorded.dcgm()]

    class Exporter(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not answers:
                self.send_error(503)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[0].encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent = Agent(tmp_path, devices, f"--exporter=http://127.0.0.1:{server.server_port}/metrics")
    try:
        agent.until(lambda: agent.values("kopt_gpu_power_watts") != {}, "the exporter is read")
        assert agent.values("kopt_gpu_power_watts", "gpu") == {("0",): 300.5}
        assert agent.values("kopt_gpu_energy_joules_total", "gpu") == {("0",): 5.0}
        assert {key[0] for key in agent.values("kopt_telemetry_readings_total", "source")} == {"exporter"}
        answers.clear()
        agent.until(lambda: agent.values("kopt_gpu_power_watts") == {}, "no figures while it is down")
        answers.append(recorded.dcgm(node="gpu-8"))
        outcomes = lambda: agent.values("kopt_telemetry_readings_total", "outcome")  # noqa: E731
        agent.until(lambda: ("other-node",) in outcomes(), "another node's metrics are refused")
        assert agent.values("kopt_gpu_power_watts") == {}
    finally:
        assert agent.stop() == 0
        server.shutdown()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "name the node"),
        (("--node=a", "--stale=5"), "two intervals"),
        (("--node=a", "--source=rocm"), "amd-smi"),
        (("--node=a", "--exporter=localhost:9400"), "no address of metrics"),
        (("--node=a", "--max-series=0"), "positive"),
        (("--node=a", "--fault-interval=0"), "positive"),
    ],
)
def test_it_says_what_it_was_asked_wrongly(options: tuple[str, ...], words: str) -> None:
    result = CliRunner().invoke(app, ["agent", "telemetry", *options], env={"NODE_NAME": "", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
