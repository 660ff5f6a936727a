"""``kopt agent topology`` as a process of its own: small, whatever its tools print, and it ends when it is told to."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import node_outputs as outputs
import pytest
import yaml
from controlplane.processes import free_port, wait_for
from replicas import KOPT
from typer.testing import CliRunner

from kopt.cli.main import app

MOST_MIB = 110
HEAVY = "ray mlflow feast torch lightgbm sklearn pandas numpy kubernetes rich"
NODE = "gpu-7"


class Server(ThreadingHTTPServer):
    """As much of an API server as the agent asks for: one node, one object; ``requests`` are the writes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.ended = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            self.server.ended.wait(300)
            return
        node = {"metadata": {"name": NODE, "uid": "u", "resourceVersion": "1"}}
        self._answer({"metadata": {"resourceVersion": "1"}, "items": [node] if "/nodes?" in self.path else []})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((body["kind"], body))
        version = str(len(self.server.requests) + 1)
        self._answer({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": version}})

    def _answer(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def api() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()


class Agent:
    """A process; its standard error is in ``log``."""

    def __init__(self, api: Server, folder: Path, *arguments: str, **environment: str) -> None:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        self.log, self.port = folder / "agent.log", free_port()
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                [
                    *KOPT,
                    "agent",
                    "topology",
                    "--node",
                    NODE,
                    "--kubeconfig",
                    str(folder / "kubeconfig"),
                    f"--port={self.port}",
                    *arguments,
                ],
                stderr=file,
                stdout=file,
                env={**os.environ, **environment},
            )

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text

    def look(self) -> None:
        before = self.scans()
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: self.scans() > before, timeout_s=90, what="another scan")

    def scans(self) -> float:
        return next(
            float(line.split()[1])
            for line in self.metrics().splitlines()
            if line.startswith("kopt_topology_scans_total ")
        )

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def test_it_publishes_what_it_replays_and_ends_when_told(api: Server, tmp_path: Path) -> None:
    agent = Agent(api, tmp_path, "--replay", str(outputs.cube_mesh(tmp_path / "recorded")))
    try:
        wait_for(lambda: len(api.requests) == 2, timeout_s=90, what="both writes")
        (kind, document), (other, node) = api.requests
        assert (kind, other) == ("NodeTopology", "Node")
        assert len(document["spec"]["links"]) == 28
        assert node["metadata"] == {
            "name": NODE,
            "uid": "u",
            "labels": {"kaiwo.ai/gpu-link": "nvlink", "kaiwo.ai/gpu-link-shape": "partial"},
        }
        assert 'kopt_topology_collector_up{collector="nvidia-smi-topo"} 1.0' in agent.metrics()
        assert "kopt_topology_gpus 8.0" in agent.metrics()
        loaded = f"import sys, kopt.agents.topology.process; print([m for m in '{HEAVY}'.split() if m in sys.modules])"
        assert subprocess.check_output([sys.executable, "-P", "-c", loaded], text=True).strip() == "[]"
    finally:
        assert agent.end() == 0


def test_a_tool_that_hangs_does_not_hold_up_the_first_publication(api: Server, tmp_path: Path) -> None:
    recorded = outputs.cube_mesh(tmp_path / "recorded")
    (tmp_path / "nvidia-smi").write_text(f"""#!/bin/sh
        [ "$*" = "topo -m" ] && exec cat {recorded}/nvidia-smi-topo.txt
        sleep 1000""")
    (tmp_path / "nvidia-smi").chmod(stat.S_IRWXU)
    agent = Agent(api, tmp_path, "--timeout", "600", f"--root={tmp_path}", PATH=f"{tmp_path}:/usr/bin:/bin")
    try:
        wait_for(lambda: api.requests, timeout_s=90, what="a first write")
        document = api.requests[0][1]
        assert len(document["spec"]["links"]) == 28
        sources = {one["name"]: one for one in document["status"]["sources"]}
        assert sources["nvidia-smi-topo"]["state"] == "ok"
        assert sources["nvidia-smi-q"]["message"] == "no answer within 5 s"
    finally:
        assert agent.end() == 0


def test_it_stays_small_whatever_its_tools_print(api: Server, tmp_path: Path) -> None:
    recorded = outputs.cube_mesh(tmp_path / "recorded")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(f"""#!/bin/sh
        case "$*" in
          "topo -m") cat {recorded}/nvidia-smi-topo.txt;;
          "-q") head -c 104857600 /dev/zero;;
          "-L") i=0; while [ $i -lt 26000 ]; do echo "GPU $i: NVIDIA (UUID: GPU-0000-$i), and more besides"; i=$((i+1));
            done;;
          "nvlink -s") sleep 1000;;
          *) exit 1;;
        esac""")
    (tools / "nvidia-smi").chmod(stat.S_IRWXU)
    agent = Agent(api, tmp_path, "--timeout", "4", f"--root={tmp_path}", PATH=f"{tools}:/usr/bin:/bin")
    try:
        wait_for(lambda: api.requests, timeout_s=90, what="a first write")
        for _ in range(3):
            agent.look()
        failures = 'kopt_topology_collector_failures_total{collector="%s",reason="%s"}'
        wait_for(lambda: failures % ("nvidia-smi-q", "too-large") in agent.metrics(), what="the long output")
        assert failures % ("nvidia-smi-nvlink", "timeout") in agent.metrics()
        assert agent.resident_mib < MOST_MIB
    finally:
        assert agent.end() == 0
    assert [kind for kind, _ in api.requests].count("Node") == 1


def test_it_says_what_it_was_told_wrong(tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["agent", "topology", *arguments], env={"NODE_NAME": "", "COLUMNS": "200"})
        return result.exit_code, " ".join(result.output.split())

    for arguments, status, words in (
        ((), 2, "name the node"),
        (("--node", "a", "--only", "smi"), 2, "no collector is named smi"),
        (("--node", "a", "--levels", "one"), 2, "two labels"),
        (("--node", "a", "--interval", "0"), 2, "positive"),
        (("--node", "a", "--replay", str(tmp_path / "absent")), 1, "is no folder"),
    ):
        code, text = said(*arguments)
        assert (code, words in text) == (status, True), text
