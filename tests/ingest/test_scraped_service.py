"""From a request to a forecast: a service with vLLM's metric names under load, scraped by a real Prometheus, followed
by the ingester, stored by the real feature store, and answered by name by the shipped model."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from asgi_server import served
from controlplane.processes import wait_for
from inference_server import inference_server
from prometheus_server import RunningPrometheus
from serving.conftest import MemorySource

from kopt.controllers.ingest.connections import connected
from kopt.controllers.ingest.ingester import Followed, Ingester, SourceState
from kopt.controllers.ingest.sources import source_of
from kopt.core.settings import Settings
from kopt.features.store import DemandFeatureStore
from kopt.models.registry.loading import shipped
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.contract.demand_answers import DemandQuery, History
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

# It waits for the end of a bucket by the clock: some minutes.
pytestmark = [pytest.mark.services, pytest.mark.long]
GRID_S = 300
CHAT, ABSENT = (
    source_of(f"ml/{name}", {"engine": "vLLM"}, {"namespace": "ml", "service": name}) for name in ("chat", "a.b|c")
)
PACE_S = 0.05


class Service:
    """An inference server, and a client that sends it requests."""

    def __init__(self) -> None:
        self.server = inference_server("127.0.0.1")
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.ending, self.sent = threading.Event(), list[float]()
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.load = threading.Thread(target=self._load, daemon=True)

    def _load(self) -> None:
        with httpx.Client(trust_env=False) as client:
            while not self.ending.wait(PACE_S):
                client.post(f"http://{self.address}/v1/completions", json={})
                self.sent.append(time.time())

    def stop(self) -> None:
        self.ending.set()
        self.load.join(timeout=10)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.stop()


@pytest.fixture
def prometheus(service: Service, tmp_path: Path) -> Iterator[str]:
    running = RunningPrometheus(
        tmp_path,
        configuration="global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: vllm\n  static_configs:\n"
        f"  - {{targets: ['{service.address}'], labels: {{namespace: ml, service: chat}}}}\n",
    )
    yield running.url
    running.stop()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[tuple[str, Settings]]:
    settings, source = Settings(home=tmp_path / "home"), MemorySource()
    source.add(shipped("demand"))  # type: ignore[arg-type]
    built = assemble(settings, Parts(source=source, refresh_s=3600))
    built.start()
    with served(create_app(built, manage=False)) as url:
        yield url, settings
    built.stop()


async def ingest(prometheus: str, url: str) -> Followed:
    async with connected(prometheus, url) as connections:
        (followed,) = await Ingester(connections.read, connections.push).once([CHAT])
        assert followed.newest is not None
        window = followed.newest - 5, followed.newest
        alone = await connections.read(CHAT, *window)
        assert await connections.read_group([CHAT, ABSENT], *window) == [alone, {}]
        return followed


def test_requests_become_a_forecast_by_name(service: Service, prometheus: str, endpoint: tuple[str, Settings]) -> None:
    url, settings = endpoint
    # A whole bucket would take ten minutes; the load begins inside one, with time for a few scrapes before its end.
    if GRID_S - time.time() % GRID_S < 20:
        time.sleep(21)
    # A counter is seen at zero first, or its first increase is not seen at all.
    time.sleep(2.5)
    service.load.start()
    end_s = (time.time() // GRID_S + 1) * GRID_S
    time.sleep(end_s - time.time() + 2.1)
    followed = asyncio.run(ingest(prometheus, url))
    assert time.time() - end_s <= 10, "age of the newest bucket"
    assert (followed.state, followed.error) == (SourceState.CURRENT, "")
    assert followed.newest is not None
    assert (followed.newest + 1) * GRID_S == end_s
    served_in_bucket = sum(at_s < end_s for at_s in service.sent)
    with PredictionClient(url, deadline_s=30.0) as client:
        answer = client.demand(DemandQuery([History("ml/chat"), History("ml/absent")]))
    forecast, absent = (series.horizons[0].demand for series in answer.series)
    assert forecast.value == pytest.approx(served_in_bucket, rel=0.25, abs=40)
    assert forecast.features_at_s == end_s
    assert forecast.reasons[0].code == "SHORT_HISTORY"
    assert absent.reasons[0].code == "NO_FEATURES"
    store = DemandFeatureStore(settings)
    wait_for(lambda: store.online(["ml/chat"]).observed_at_s[0] == end_s, what="the bucket is materialised")
    row = store.online(["ml/chat"])
    assert row.features[0, 0] == pytest.approx(served_in_bucket, rel=0.25, abs=40)
