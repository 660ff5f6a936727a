"""``kopt demand ingest``: from a real Prometheus to a real endpoint, and clear words where that is not possible."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_server import served
from serving.conftest import MemorySource, StandInModel, no_store
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.settings import Settings
from kopt.dashboard.data.capacity import read_capacities
from kopt.data.demand.table import DemandSeries
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.demand_answers import DemandQuery, History
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

GRID_S = 300
RUNNER = CliRunner()


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    source = MemorySource()
    source.add(StandInModel())
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600)
    built = assemble(Settings(home=tmp_path / "endpoint"), parts)
    built.start()
    with served(create_app(built, manage=False)) as url:
        monkeypatch.setenv("KOPT_URL", url)
        monkeypatch.setenv("KOPT_HOME", str(tmp_path))
        yield url
    built.stop()


class Silent(BaseHTTPRequestHandler):
    """A Prometheus whose queries give nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def silent() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def run(*arguments: str) -> Any:
    return RUNNER.invoke(app, ["demand", "ingest", *arguments])


def test_a_service_without_samples_is_silent_and_no_error(endpoint: str, silent: str) -> None:
    done = run("--prometheus", silent, "--service", "chat", "--engine", "vllm", "-o", "json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["services"]
    assert (row["service"], row["state"], row["changed"], row["newest_s"]) == ("chat", "silent", 0, None)


def test_a_prometheus_that_is_away_is_said_with_the_service(endpoint: str) -> None:
    done = run("--prometheus", "http://127.0.0.1:9", "--service", "chat", "--engine", "vLLM")
    assert done.exit_code == 1
    assert "chat" in done.output
    assert "cannot be reached" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--service", "chat"), "either an engine or a query"),
        (("--service", "chat", "--engine", "TGI"), "known are vLLM"),
        (("--service", "chat", "--engine", "vLLM", "--match", "x"), "no NAME=VALUE"),
        (("--engine", "vLLM"), "go with --service"),
        ((), "services.toml"),
        (("--service", "chat", "--query", "q", "--since", "20d"), "two weeks"),
    ],
)
def test_wrong_usage_says_what_to_give(endpoint: str, arguments: tuple[str, ...], message: str) -> None:
    done = run("--prometheus", "http://127.0.0.1:9", *arguments)
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.replace("│", " ").split())


def test_one_services_toml_is_read_by_the_pages_and_by_ingest(tmp_path: Path) -> None:
    path = tmp_path / "services.toml"
    path.write_text('[chat]\ngpus = 8\nper_gpu = 600\nengine = "vLLM"\n[search]\nquery = "q"\n')
    assert list(read_capacities(path)) == ["chat"]


@pytest.mark.services
def test_two_days_of_a_real_prometheus_are_answered_by_name(
    endpoint: str, prometheus_server: Any, tmp_path: Path
) -> None:
    now = int(time.time()) // GRID_S * GRID_S
    value = np.random.default_rng(3).integers(50, 200, 580).astype(float)
    value[100:110] = np.nan
    history = DemandSeries("chat", float(now - 580 * GRID_S), GRID_S, value, start_known=True)
    server = prometheus_server([history])
    services = tmp_path / "services.toml"
    services.write_text("[chat]\nquery = 'sum(increase(requests_total{service=\"chat\"}[$step]))'\n")
    # The newest bucket may not have settled, or another may have ended since.
    done = run("--prometheus", server.url, "-o", "json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["services"]
    assert 550 <= row["changed"] <= 572
    again = run("--prometheus", server.url, "-o", "json")
    assert json.loads(again.stdout)["services"][0]["changed"] <= 1
    with PredictionClient(endpoint, deadline_s=30.0) as client:
        forecast = client.demand(DemandQuery([History("chat")])).series[0].horizons[0].demand
    assert not forecast.refused
    # increase(…) extrapolates over the ends of its window.
    assert forecast.value == pytest.approx(value[-1], rel=0.3)
