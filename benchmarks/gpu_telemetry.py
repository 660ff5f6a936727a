"""What the telemetry agent costs a node, and how fast it answers.

The agent runs as in the chart, over the stand-in for NVML of ``tests/nvml_standin`` (eight GPUs, then four of them cut
into seven) and the test kubelet's PodResources. It is asked as Prometheus asks, for gzip. In turn with it another
process is asked that sends as many bytes without reading what was asked: what scheduling on the machine takes alone.
``gpu-sums`` is about Prometheus with the series of many such nodes.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from controlplane.kubelet import DeviceManager
from controlplane.processes import free_port, wait_for
from nvml_standin.devices import Devices

WATCHED_S = 60.0
SCRAPES = 5000
GPUS = 8
_ASKED = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept-Encoding: gzip\r\n\r\n"
_FLOOR = """
import asyncio, sys
body = b"x" * int(sys.argv[2])
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body
class Answers(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(answer)
async def main():
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""


def main() -> int:
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        print("| node | series | CPU, % of a core | PSS, MiB | RSS, MiB | /metrics P50, P99, ms | floor P50, P99, ms |")
        print("|---|---|---|---|---|---|---|")
        for name, cut in (("8 GPUs", 0), ("8 GPUs, 4 of them in 7 instances", 4)):
            print(f"| {name} | {_agent(folder, cut)} |", flush=True)
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
        text = _scrape(port).decode()
        series = next(line.split()[1] for line in text.splitlines() if line.startswith("kopt_telemetry_series "))
        cells = [f"{_at(took, 0.5):.2f}, {_at(took, 0.99):.2f}" for took in _answers(port)]
        return f"{float(series):.0f} | {share:.2%} | {pss:.0f} | {rss:.0f} | {cells[0]} | {cells[1]}"
    finally:
        process.terminate()
        process.wait(10)
        manager.stop()


def _answers(port: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each answer of the agent and of the floor, asked in turn."""
    with socket.create_connection(("127.0.0.1", port)) as agent:
        length = _asked(agent)
        other = free_port()
        floor = subprocess.Popen([sys.executable, "-c", _FLOOR, str(other), str(length)])
        try:
            wait_for(lambda: socket.create_connection(("127.0.0.1", other)).close() is None, what="the floor listens")
            with socket.create_connection(("127.0.0.1", other)) as bare:
                took = [(_timed(lambda: _asked(agent)), _timed(lambda: _asked(bare))) for _ in range(SCRAPES)]
        finally:
            floor.kill()
            floor.wait()
    return [each[0] * 1e3 for each in took], [each[1] * 1e3 for each in took]


def _asked(connection: socket.socket) -> int:
    """One scrape; how many bytes the body had."""
    connection.sendall(_ASKED)
    head, got = b"", b""
    while not head:
        got += connection.recv(1 << 18)
        head, end, rest = got.partition(b"\r\n\r\n")
        head = head if end else b""
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    left = length - len(rest)
    while left > 0:
        left -= len(connection.recv(1 << 18))
    return length


def _at(took: list[float], share: float) -> float:
    return sorted(took)[int(len(took) * share)]


def _scrape(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return bytes(answer.read())


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


if __name__ == "__main__":
    raise SystemExit(main())
