"""What the telemetry agent costs a node, how fast it answers, and how fast Prometheus adds up a cluster of 1,250 nodes.

The agent runs as in the chart, over the stand-in for NVML of ``tests/nvml_standin`` (eight GPUs, then four of them cut
into seven) and the test kubelet's PodResources. The cluster's series are backfilled into a real Prometheus.
"""

import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.kubelet import DeviceManager
from controlplane.processes import free_port, wait_for
from nvml_standin.devices import Devices
from prometheus_server import RunningPrometheus

from kopt.core.hardware.gpu_telemetry import LABELS

WATCHED_S = 60.0
SCRAPES = 5000
NODES, GPUS = 1250, 8
_QUERIES = {
    "mean busy of a cluster": "avg(kopt_gpu_busy_ratio)",
    "power by node, the ten highest": "topk(10, sum by (node) (kopt_gpu_power_watts))",
    "busy by namespace": "avg by (namespace) (kopt_gpu_busy_ratio)",
    "held and idle, by namespace": "count by (namespace) (kopt_gpu_busy_ratio{pod!=''} < 0.02)",
}


def main() -> int:
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        print("| node | series | CPU, % of a core | PSS, MiB | RSS, MiB | /metrics P50, ms | P99, ms |")
        print("|---|---|---|---|---|---|---|")
        for name, cut in (("8 GPUs", 0), ("8 GPUs, 4 of them in 7 instances", 4)):
            print(f"| {name} | {_agent(folder, cut)} |", flush=True)
        print(f"\n{NODES} nodes x {GPUS} GPUs in Prometheus, ms for a query (median, highest of 20):\n")
        prometheus = RunningPrometheus(folder, "\n".join([*_history(), "# EOF", ""]))
        parts.callback(prometheus.stop)
        for what, query in _QUERIES.items():
            took = sorted(_timed(lambda query=query: _ask(prometheus.url, query)) for _ in range(21))[:-1]  # type: ignore[misc]
            print(f"* {what}: {statistics.median(took) * 1e3:.1f}, {took[-1] * 1e3:.1f}")
    return 0


def _agent(folder: Path, cut: int) -> str:
    devices = Devices(folder / f"gpus-{cut}", gpus=GPUS)
    for number in range(GPUS):
        devices.state.activity[number].gpm = 1
        if number < cut:
            devices.cut(number, *(("1g.10gb", start) for start in range(7)))
    manager = DeviceManager({"nvidia.com/gpu": [devices.uuid(number) for number in range(cut, GPUS)]})
    port = free_port()
    command = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app(prog_name='kopt')", "agent", "telemetry"]
    command += ["--node=n", f"--port={port}", f"--pod-resources={manager.pod_resources}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **devices.environment}, stderr=log)
    try:
        wait_for(lambda: b"kopt_gpu_busy_ratio" in _scrape(port), timeout_s=60, what="two readings")
        pids = [process.pid, *map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())]
        before, begin_s = sum(map(_cpu_s, pids)), time.monotonic()
        time.sleep(WATCHED_S)
        share = (sum(map(_cpu_s, pids)) - before) / (time.monotonic() - begin_s)
        pss, rss = (sum(_memory_mib(pid, what) for pid in pids) for what in ("Pss", "Rss"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        took = sorted(_timed(lambda: _scrape(port, connection)) for _ in range(SCRAPES))
        text = _scrape(port).decode()
        series = next(line.split()[1] for line in text.splitlines() if line.startswith("kopt_telemetry_series "))
        p50, p99 = (took[int(SCRAPES * at)] * 1e3 for at in (0.5, 0.99))
        return f"{float(series):.0f} | {share:.2%} | {pss:.0f} | {rss:.0f} | {p50:.2f} | {p99:.2f}"
    finally:
        process.terminate()
        process.wait(10)
        manager.stop()


def _scrape(port: int, connection: http.client.HTTPConnection | None = None) -> bytes:
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    own.request("GET", "/metrics")
    return own.getresponse().read()


def _timed(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def _history() -> Iterator[str]:
    now_s = int(time.time())
    for metric in ("kopt_gpu_busy_ratio", "kopt_gpu_power_watts"):
        yield f"# TYPE {metric} gauge"
        for node in range(NODES):
            for gpu in range(GPUS):
                held = (node + gpu) % 4 != 0
                values = (
                    f"n{node}",
                    gpu,
                    f"GPU-{node}-{gpu}",
                    "H100",
                    "",
                    "",
                    f"team-{node % 20}" * held,
                    f"p{node}" * held,
                )
                labels = ",".join(
                    f'{name}="{value}"' for name, value in zip(LABELS, values, strict=True) if value != ""
                )
                for left in (120, 60, 0):
                    yield f"{metric}{{{labels}}} {(node * 7 + gpu) % 100 / 100} {now_s - left}"


def _ask(url: str, query: str) -> bytes:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={urllib.parse.quote(query)}", timeout=30) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    raise SystemExit(main())
