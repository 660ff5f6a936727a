"""``kopt evictions`` as people see it, before a server that holds a ledger, or none."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.cluster.objects.eviction import body_of, status_of
from kopt.core.scheduling.eviction import Cause, Eviction, Phase, Return, System, WorkloadRef


class Shelf(BaseHTTPRequestHandler):
    """Answers every request with ``answer``."""

    answer: tuple[int, dict[str, Any]] = (404, {"kind": "Status", "reason": "NotFound", "message": "no such kind"})

    def do_GET(self) -> None:
        status, document = self.answer
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[type[Shelf], str]]:
    """The handler to set ``answer`` on, and a kubeconfig."""
    handler = type("Mine", (Shelf,), {})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{running.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    yield handler, str(path)
    running.shutdown()
    running.server_close()


def line(name: str, ago_s: float, phase: Phase, lost: float | None, order: int) -> dict[str, Any]:
    at_s = time.time() - ago_s
    ref = WorkloadRef("batch/v1", "Job", name, f"uid-{name}")
    eviction = Eviction(
        "team",
        f"{name}-1",
        ref,
        System.KUEUE,
        at_s,
        Cause.PREEMPTED,
        "kueue",
        "prod/urgent",
        "why",
        8000,
        order,
        90,
        at_s - 60,
        lost,
    )
    back = None if phase is Phase.WAITING else at_s + 3725
    return {**body_of(eviction), "status": status_of(Return(phase, back))}


def test_without_the_ledger_it_says_what_to_install(server: tuple[type[Shelf], str]) -> None:
    done = CliRunner().invoke(app, ["evictions", "--kubeconfig", server[1]])
    assert done.exit_code == 1
    assert "install the chart with evictions.enabled=true" in done.stderr.replace("\n", " ")


def test_lines_of_the_asked_time_and_all_that_waits(server: tuple[type[Shelf], str]) -> None:
    lines = [
        line("old", 9 * 86400, Phase.RESUMED, None, 1),
        line("back", 7200, Phase.RESUMED, 7200.0, 2),
        line("first", 8 * 86400, Phase.WAITING, None, 3),
        line("next", 60, Phase.WAITING, 3600.0, 4),
    ]
    server[0].answer = 200, {"kind": "EvictionList", "metadata": {"resourceVersion": "1"}, "items": lines}

    def asked(*options: str) -> str:
        done = CliRunner().invoke(app, ["evictions", "--kubeconfig", server[1], *options])
        assert done.exit_code == 0, done.stderr
        return str(done.stdout)

    rows = json.loads(asked("-o", "json"))["evictions"]
    assert [one["workload"] for one in rows] == ["team/next", "team/back", "team/first"]
    assert [one["workload"] for one in json.loads(asked("--waiting", "-o", "json"))["evictions"]] == [
        "team/first",
        "team/next",
    ]
    assert (rows[1]["gpus"], rows[1]["lost_gpu_hours"], rows[1]["last_durable_step"]) == (8.0, 2.0, 90)
    table = asked()
    for word in ("team/back", "prod/urgent", "Preempted", "1h02m", "2.00", "3 evictions, 2 of them waiting"):
        assert word in table, table
    assert asked("-o", "csv").splitlines()[0].startswith("evicted_at,workload,by,for_whom,cause,gpus")


def test_a_line_that_cannot_be_read_costs_no_other(server: tuple[type[Shelf], str]) -> None:
    broken = line("broken", 60, Phase.WAITING, None, 5)
    broken["spec"]["evictedAt"] = "2026-02-30T00:00:00Z"
    lines = [broken, line("next", 60, Phase.WAITING, 3600.0, 4)]
    server[0].answer = 200, {"kind": "EvictionList", "metadata": {"resourceVersion": "1"}, "items": lines}
    done = CliRunner().invoke(app, ["evictions", "--kubeconfig", server[1]])
    assert done.exit_code == 0, done.stderr
    assert "team/next" in done.output
    assert "cannot be read: team/broken-1" in done.output.replace("\n", " ")


def test_who_may_not_read_all_is_told_to_name_a_namespace(server: tuple[type[Shelf], str]) -> None:
    server[0].answer = 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}
    done = CliRunner().invoke(app, ["evictions", "--kubeconfig", server[1]])
    assert (done.exit_code, "name yours with -n" in done.stderr.replace("\n", " ")) == (1, True)
