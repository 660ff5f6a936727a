"""``kopt up`` from an empty home to forecasts over HTTP, and nothing left behind afterwards."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, sync_playwright
from playwright.sync_api import TimeoutError as BrowserTimeout

from kopt.cli.errors import Refused
from kopt.cli.local import state
from kopt.cli.local.up import addresses, has_display, with_ports
from kopt.core.settings import Settings
from kopt.dashboard.pages.pages import PAGES
from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from tests.dashboard.test_browser import ARGUMENTS, CHROMIUM

UP = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app(prog_name='kopt')"]


def environ(home: Path) -> dict[str, str]:
    """Ours, without a cluster: where one is named, as in a pod, there is no example."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("KOPT_", "KUBE"))}
    ports = {f"KOPT_{name}_PORT": "0" for name in ("API", "PAGES", "MLFLOW")}
    return {**known, **ports, "KOPT_HOME": str(home)}


def run(home: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*UP, *arguments], env=environ(home), capture_output=True, text=True, check=False)


@contextmanager
def platform(home: Path, within_s: float = 540.0) -> Iterator[tuple[dict[str, str], subprocess.Popen[str], Path]]:
    """``kopt up`` with its addresses, process and the file of its standard error; killed if the test leaves it."""
    errors, answer = (home.parent / f"{name}-{time.monotonic_ns()}" for name in ("stderr", "stdout"))
    with errors.open("w") as err, answer.open("w") as out:
        process = subprocess.Popen(
            [*UP, "up", "--no-browser", "-o", "json"], env=environ(home), stdout=out, stderr=err, text=True
        )
    try:
        deadline = time.monotonic() + within_s
        while not answer.read_text().endswith("\n"):
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline, errors.read_text()
            time.sleep(0.2)
        yield json.loads(answer.read_text()), process, errors
    finally:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[str], by: signal.Signals) -> None:
    """Stop and hold that not one descendant is left."""
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 6
    process.send_signal(by)
    process.wait(180)
    _, alive = psutil.wait_procs(family, timeout=120)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE], alive


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.long
def test_up_trains_once_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_demand(generate(services=3, days=4.0, seed=2), home / "demand", source="generator")

    with platform(home) as (found, process, errors):
        assert set(found) >= {"api", "pages", "mlflow"}
        status = subprocess.run(
            [*UP, "status", "-o", "json"], env=environ(home), capture_output=True, text=True, check=False
        )
        assert status.returncode == 0, status.stderr
        assert json.loads(status.stdout)["api"] == found["api"]
        assert "train a challenger" in errors.read_text()
        _nothing_listens_beyond_loopback(process.pid)
        _a_forecast_arrives(found["api"])
        _a_size_arrives_from_the_registered_model(found["api"])
        _every_page_has_content(found["pages"])
        second = run(home, "up")
        assert second.returncode == 1
        assert "already runs" in second.stderr
        trained = _versions(home)
        end(process, signal.SIGINT)
        assert process.returncode == 0
    assert state.read(home) is None

    with platform(home) as (_, process, errors):
        assert "train a challenger" not in errors.read_text()
        assert _versions(home) == trained
        # Even without the chance to say goodbye.
        end(process, signal.SIGKILL)


def _nothing_listens_beyond_loopback(pid: int) -> None:
    """Of the whole platform: Ray, Serve, the pages and MLflow."""
    listening: set[tuple[str, str]] = set()
    for part in psutil.Process(pid).children(recursive=True):
        # Some parts live for a moment only.
        with contextlib.suppress(psutil.NoSuchProcess):
            sockets = [each for each in part.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            listening |= {(part.name(), each.laddr.ip.removeprefix("::ffff:")) for each in sockets}
    assert {"raylet", "gcs_server", "haproxy"} <= {name for name, _ in listening}
    assert {address for _, address in listening} == {"127.0.0.1"}, listening


CONTENT = {
    "/": "table.services tbody tr",
    "/lending": ".chart.drawn",
    "/recommendations": "article pre",
    "/queue": "td .badge.pending",
    "/jobs": "article svg .state",
    "/topology": "#cluster.drawn",
    "/cluster": ".chart.drawn",
    "/models": "table.metrics td.n",
    "/quotas": "table.quotas tbody tr",
    "/capacity": "section.pool",
    "/gpus": ".gpumap canvas",
    "/alerts": "table.alerts tbody tr",
    "/efficiency": "svg.hours",
    "/cost": "table.costs tbody tr",
}
"""What each page of the navigation has to show in an example: its first services, sizes with patches, jobs, …"""


def _every_page_has_content(url: str) -> None:
    """In a real browser, as a user finds the pages after the first start; each says that it shows an example."""
    assert set(CONTENT) == {page.path for page in PAGES if page.title}
    if not os.access(CHROMIUM, os.X_OK):
        return
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = chromium.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        for path, content in CONTENT.items():
            _open_until(page, url + path, content)
            assert "Example data" in page.locator(".banner.example").inner_text()
            assert page.locator("section.empty").count() == 0, path
        assert errors == []
        chromium.close()


def _open_until(page: Page, address: str, content: str) -> None:
    """Open a page, again and again, until it shows this: the endpoint loads one model after the other."""
    deadline = time.monotonic() + 300
    while True:
        page.goto(address)
        try:
            # Patches are folded away.
            page.wait_for_selector(content, state="attached", timeout=10_000)
        except BrowserTimeout:
            assert time.monotonic() < deadline, f"{address} has no {content}"
        else:
            return


def _a_forecast_arrives(url: str) -> None:
    from kopt.serving.client.blocking import PredictionClient
    from kopt.serving.contract.demand_answers import DemandQuery, History

    series = generate(services=1, days=3.0, seed=9)[0]
    history = History("mine", t=series.times_s.tolist(), value=series.value.tolist())
    with PredictionClient(url, deadline_s=30.0) as client:
        answer = client.demand(DemandQuery([history], horizons_s=(300, 3600)))
    assert not answer.fallback
    assert [horizon.horizon_s for horizon in answer.series[0].horizons] == [300, 3600]


def _a_size_arrives_from_the_registered_model(url: str) -> None:
    from kopt.models.predictors import predictor_names
    from kopt.serving.client.blocking import PredictionClient

    line = (
        "torchrun pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 4 --bf16"
    )
    deadline = time.monotonic() + 300
    with PredictionClient(url, deadline_s=30.0) as client:
        # The sizing model is loaded after the first one, so that the endpoint answers sooner.
        while (answer := client.sizing({"workload": line}))["fallback"] and time.monotonic() < deadline:
            time.sleep(0.5)
        serving = {one.name: one.version for one in client.models().models if one.serving}
    assert answer["memory"]["peak_bytes"] > 1 << 30
    assert answer["model"]["version"] == serving["sizing"] == "1"
    assert {"demand", "sizing"} <= set(serving) <= set(predictor_names())


def _versions(home: Path) -> list[dict[str, object]]:
    done = subprocess.run(
        [*UP, "models", "list", "-o", "json"], env=environ(home), capture_output=True, text=True, check=True
    )
    versions: list[dict[str, object]] = json.loads(done.stdout)["models"]
    return versions


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.long
def test_a_training_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_demand(generate(services=3, days=4.0, seed=2), home / "demand", source="generator")
    command = [*UP, "train", "demand", "--folds", "3", "-o", "json"]
    first = subprocess.Popen(command, env=environ(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 500
        while not list(home.glob("runs/*/*/done.json")) or not _fits(home):
            assert first.poll() is None, "it was finished before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        family = psutil.Process(first.pid).children(recursive=True) if first.poll() is None else []
        first.kill()
        first.wait()
    # Two agents of Ray look for their parent once in a while only.
    _, alive = psutil.wait_procs(family, timeout=150)
    assert not alive, "Ray ends with the process that started it"
    again = run(home, *command[len(UP) :])
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["steps_kept"] >= 1
    third = run(home, *command[len(UP) :])
    assert json.loads(third.stdout)["steps_computed"] == 0


def _fits(home: Path) -> list[Path]:
    return [path for path in home.glob("runs/*/*/done.json") if path.parent.name.startswith(("fold-", "recent"))]


def test_a_port_that_is_taken_is_named_with_a_way_out(tmp_path: Path) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Refused, match=rf"port {port} for the web pages is taken.*KOPT_PAGES_PORT"):
            with_ports(Settings(tmp_path, api_port=0, pages_port=port, mlflow_port=0))


def test_free_ports_differ_and_two_servers_cannot_share_one(tmp_path: Path) -> None:
    found = with_ports(Settings(tmp_path, api_port=0, pages_port=0, mlflow_port=0))
    assert len({found.api_port, found.pages_port, found.mlflow_port, 0}) == 4
    with pytest.raises(Refused, match="meant for two servers"):
        with_ports(Settings(tmp_path, api_port=found.api_port, pages_port=found.api_port, mlflow_port=0))


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8700"), ("0.0.0.0", "http://127.0.0.1:8700"), ("::1", "http://[::1]:8700")],
)
def test_addresses_can_be_opened(host: str, url: str) -> None:
    assert addresses(Settings(Path("/x"), api_host=host))["api"] == url


def test_no_browser_is_opened_where_nobody_would_see_it() -> None:
    assert not has_display({"DISPLAY": ":0"}, terminal=False)
    assert has_display({"DISPLAY": ":0"}, terminal=True)
    assert not has_display({}, terminal=True) or sys.platform == "darwin"
