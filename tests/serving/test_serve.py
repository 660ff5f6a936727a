"""The endpoint on a real Ray Serve with a real model from a real registry: answers, reloads, dies and comes back."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from kopt.core.settings import Settings
from kopt.core.signing_keys import signing_key
from kopt.data.demand.generator import generate
from kopt.models.registry.artifact import ModelCard, save_model
from kopt.models.registry.registry import Registry
from kopt.models.registry.signing import sign_folder
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, History
from tests.serving.conftest import history, wave

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

VALUES = wave(700)
QUERY = DemandQuery([History("chat", [i * 300.0 for i in range(700)], VALUES, gpus=20)], capacity_per_gpu=12.0)
SERVER = """
import sys
from pathlib import Path
from kopt.core.settings import Settings
from kopt.serving.endpoint import deploy
settings = Settings(home=Path(sys.argv[1]), api_port=0)
running = deploy.start(settings, ray_options={"num_cpus": 2, "_temp_dir": sys.argv[2]})
print(running.url, flush=True)
sys.stdin.readline()
deploy.stop(running)
print("stopped", flush=True)
"""


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str]
    settings: Settings
    registry: Registry

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def named(self, part: str) -> list[psutil.Process]:
        return [child for child in self.children() if part in child.name() or part in " ".join(child.cmdline())]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Version 1 serves as champion, version 2 waits. Ray's folder is short: Unix sockets end at 107 bytes."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    registry = Registry(settings, trusted_digests=())
    for version in ("1", "2"):
        registry.register(fitted(settings, tmp_path_factory.mktemp("model") / version, version))
    registry.promote("demand", "1", force=True, reason="test")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as ray_folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_USAGE_STATS_ENABLED": "0"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER, str(settings.home), ray_folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean,
        )
        assert process.stdout is not None
        children: list[psutil.Process] = []
        try:
            url = next(line.strip() for line in process.stdout if line.startswith("http://"))
            started = Server(url, process, settings, registry)
            children = started.children()
            yield started
        finally:
            if process.poll() is None:
                children = psutil.Process(process.pid).children(recursive=True)
            for one in (*children, process):
                if one.is_running() if isinstance(one, psutil.Process) else one.poll() is None:
                    one.kill()
            process.wait()


_PREDICTOR = []


def fitted(settings: Settings, folder: Path, note: str) -> Path:
    """A small model; ``note`` makes its digest another one."""
    from kopt.models.demand.global_model import GlobalSettings
    from kopt.models.demand.predictor import DemandPredictor
    from kopt.models.demand.table import training_table

    if not _PREDICTOR:
        small = GlobalSettings(rounds=8, leaves=8, rows_per_series=500, threads=1, network_epochs=1)
        _PREDICTOR.append(DemandPredictor(small).fit(training_table(generate(services=3, days=3))))
    save_model(_PREDICTOR[0], folder, ModelCard("demand", {"note": note}))
    sign_folder(folder, signing_key(settings.keys))
    return folder


def wait_for_model(client: PredictionClient, within_s: float = 180.0) -> DemandForecast:
    end_s = time.monotonic() + within_s
    while True:
        forecast = client.demand(QUERY, deadline_s=2.0)
        if not forecast.fallback:
            return forecast
        assert time.monotonic() < end_s, forecast.series[0].horizons[0].demand.reasons
        time.sleep(0.2)


def test_a_real_model_answers_through_serve(server: Server) -> None:
    with PredictionClient(server.url) as client:
        forecast = wait_for_model(client)
        assert client.ready()
        demand = [one for one in client.models().models if one.name == "demand"]
        assert [(one.version, one.serving) for one in demand] == [("2", False), ("1", True)]
    assert forecast.model.version == "1"
    assert len(forecast.model.digest) == 64
    for horizon in forecast.series[0].horizons:
        levels = [horizon.demand.quantiles[q] for q in (0.5, 0.9, 0.95, 0.99)]
        assert levels == sorted(levels)
        assert 20 < levels[0] < 300
        assert horizon.gpus is not None
        assert horizon.gpus.reasons[0].code == "PROVISION"


def test_metrics_of_the_replica_are_scraped_through_serve(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    assert 'kopt_requests_total{route="/v1/demand",status="200"}' in text
    assert 'kopt_model_serving{alias="champion",version="1"} 1.0' in text


def test_the_endpoint_listens_on_loopback_alone(server: Server) -> None:
    (haproxy,) = server.named("bin/haproxy")
    (replica,) = server.named("ServeReplica:kopt")
    listening = [c.laddr for c in haproxy.net_connections("inet") if c.status == "LISTEN"]
    assert len(listening) >= 3
    assert {address.ip for address in listening} == {"127.0.0.1"}
    # Ray's own (gRPC) ports are guarded by its token as well; HTTP is not.
    http = [
        c.laddr for c in replica.net_connections("inet") if c.status == "LISTEN" and 30_000 <= c.laddr.port <= 31_000
    ]
    assert {address.ip for address in http} <= {"127.0.0.1"}
    assert replica.environ()["RAY_AUTH_MODE"] == "token"
    # A socket for IPv6 says so of an IPv4 address.
    everything = {
        c.laddr.ip.removeprefix("::ffff:")
        for child in server.children()
        for c in child.net_connections("inet")
        if c.status == "LISTEN"
    }
    assert everything == {"127.0.0.1"}


def test_a_promotion_is_followed_under_load_without_a_dropped_request(server: Server) -> None:
    answers: list[tuple[int, str, bool]] = []
    stop = threading.Event()

    def keep_asking(name: str) -> None:
        body = {"series": [{**history(VALUES[:400]), "name": name}]}
        with httpx.Client(base_url=server.url, trust_env=False, timeout=10.0) as http:
            while not stop.is_set():
                reply = http.post("/v1/demand", json=body)
                document = reply.json()
                answers.append((reply.status_code, document["model"]["version"], document["fallback"]))

    threads = [threading.Thread(target=keep_asking, args=(f"load-{i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    server.registry.promote("demand", "2", force=True, reason="test")
    end_s = time.monotonic() + 180
    while not answers or answers[-1][1] != "2":
        assert time.monotonic() < end_s
        time.sleep(0.05)
    time.sleep(0.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert {status for status, _, _ in answers} == {200}
    assert not [one for one in answers if one[2]]
    versions = [version for _, version, _ in answers]
    assert versions[0] == "1"
    assert versions[-1] == "2"


async def test_beyond_its_limit_the_endpoint_says_when_to_come_back(server: Server) -> None:
    release = asyncio.Event()
    body = json.dumps({"series": [history()]}).encode()

    async def slow() -> object:
        yield body[:10]
        await release.wait()
        yield body[10:]

    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30.0, limits=limits) as http:
        headers = {"content-type": "application/json"}
        waiting = [asyncio.create_task(http.post("/v1/demand", content=slow(), headers=headers)) for _ in range(64)]  # type: ignore[arg-type]
        refused = None
        for _ in range(100):
            await asyncio.sleep(0.05)
            refused = await http.post("/v1/demand", content=body, headers=headers)
            if refused.status_code == 429:
                break
        assert (await http.get("/healthz")).status_code == 200
        release.set()
        answered = await asyncio.gather(*waiting)
    assert refused is not None
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert {reply.status_code for reply in answered} == {200}


def test_a_killed_replica_costs_no_caller_an_answer_and_comes_back(server: Server) -> None:
    with PredictionClient(server.url, deadline_s=1.0) as client:
        wait_for_model(client)
        killed, seen, slowest = False, [], 0.0
        end_s = time.monotonic() + 120
        while time.monotonic() < end_s:
            started = time.monotonic()
            forecast = client.demand(QUERY)
            slowest = max(slowest, time.monotonic() - started)
            seen.append(forecast.fallback)
            if not killed and len(seen) > 10:
                (replica,) = server.named("ServeReplica:kopt")
                replica.send_signal(signal.SIGKILL)
                killed = True
            if True in seen and not forecast.fallback:
                break
            time.sleep(0.02)
    assert True in seen, "the kill was not noticed"
    assert not seen[-1], "it did not come back"
    assert slowest < 1.3


def test_with_the_whole_of_ray_dead_the_fallback_answers_in_time(server: Server) -> None:
    with PredictionClient(server.url, deadline_s=0.5) as client:
        wait_for_model(client)
        for process in (*server.children(), psutil.Process(server.process.pid)):
            if process.is_running():
                process.send_signal(signal.SIGKILL)
        codes, slowest = set(), 0.0
        for _ in range(20):
            started = time.monotonic()
            forecast = client.demand(QUERY)
            slowest = max(slowest, time.monotonic() - started)
            assert forecast.fallback
            codes.add(forecast.series[0].horizons[0].demand.reasons[0].code)
        assert slowest < 0.75
        assert "CIRCUIT_OPEN" in codes
        assert forecast.series[0].horizons[0].gpus is not None
