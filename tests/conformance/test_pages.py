"""What every page does: it is answered without data, with data and with the endpoint away; hostile text stays text."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages_source import FixedSource

from kopt.controllers.overview.documents import pool_of
from kopt.core.hardware.pairwise import Health
from kopt.core.prediction import ModelVersion
from kopt.core.recorded_actions import RecordedAction
from kopt.core.scheduling.queued import Queued
from kopt.core.settings import Settings
from kopt.core.workload.checkpoint import JobState, JobStatus
from kopt.core.workload.sizing import ShareKind
from kopt.dashboard.app import create_app, pages_client
from kopt.dashboard.data.capacity import assumed_capacity
from kopt.dashboard.data.feed import AnyFeed
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import ClusterNode, Endpoint, Nodes, PastForecast, Service, Snapshot
from kopt.dashboard.live import FEEDS, LiveSource
from kopt.dashboard.pages.alerts.data import ALERTS
from kopt.dashboard.pages.capacity.data import CAPACITY
from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cost.data import COSTS
from kopt.dashboard.pages.efficiency.data import EFFICIENCY
from kopt.dashboard.pages.gpus.data import GPUS, VisibleMap
from kopt.dashboard.pages.jobs.data import JOBS, Jobs
from kopt.dashboard.pages.models.data import MODELS, Models
from kopt.dashboard.pages.page import Page
from kopt.dashboard.pages.pages import PAGES
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.recorded import RECORDED, Recorded, RecordedActions
from kopt.dashboard.pages.quotas.data import QUOTAS
from kopt.dashboard.pages.services.data import PAST
from kopt.dashboard.pages.services.replay import Past
from kopt.dashboard.pages.sizes.data import SIZES, Sizes
from kopt.dashboard.pages.topology.data import NODES, PAIRS, Pairs
from kopt.data.demand.generator import generate
from kopt.models.predictors import predictor_names
from kopt.models.registry.registry import RegisteredModel
from kopt.serving.contract.bandwidth.pairwise_answers import PairNodeOut, PairsResponse
from kopt.serving.contract.checkpoint_answers import ChangeOut, JobOut
from kopt.serving.contract.common import ModelOut
from kopt.serving.contract.size_advice import SizeAdvice
from tests.alerts import made_alerts
from tests.capacity import made_capacity
from tests.cost import metered
from tests.dashboard import cluster_objects as objects
from tests.dashboard import gpu_objects as gpus
from tests.dashboard import queue_objects as queues
from tests.dashboard import quota_objects
from tests.dashboard.test_topology_page import CUBE, node_of
from tests.efficiency import made_hours

HOSTILE = "<script>alert('x')</script>{{ 7*7 }}"
NOW_S = 1_900_000_000.0
ADDRESS = "http://127.0.0.1:8701"
every_page = pytest.mark.parametrize("page", PAGES, ids=[page.path for page in PAGES])


def full(name: str) -> Mapping[AnyFeed, Any]:
    """Something in every feed, with ``name`` wherever a name or a sentence comes from outside."""
    (series,) = generate(services=1, days=1, seed=3)
    series = replace(series, name=name)
    service = Service(series, None, assumed_capacity(series), float(series.times_s[-1] + series.step_s))
    snapshot = Snapshot({name: service}, Endpoint(ADDRESS, name), NOW_S, (name,))
    status = JobStatus(JobState.TRAIN).to_dict()
    changes = (ChangeOut(NOW_S - 60, JobState.TRAIN, True, 1, name),)
    job = JobOut(**status, job=name, heard_at=NOW_S, gpus=1.0, lines=3, missed={}, changes=changes)
    size = SizeAdvice(
        name, name, name, name, 1, None, None, 5, 4, 6, {name: 5}, ShareKind.WHOLE, 6, 1000, "", 1, name, 0.5, (), NOW_S
    )
    model = RegisteredModel("demand", "1", "1".rjust(64, "0"), name, NOW_S, ("champion",), gate_summary=name)

    async def past(_: Service, __: Endpoint) -> Past:
        return Past((PastForecast(NOW_S, 3600, {0.5: 1.0}, 2.0),), problem=name)

    async def recorded(_: Sequence[Queued]) -> Recorded:
        return Recorded((RecordedAction(NOW_S, name, name, name, name, name, name),), problem=name)

    return {
        SNAPSHOT: snapshot,
        RECORDED: RecordedActions(recorded),
        PAST: past,
        SIZES: Sizes((size,), problem=name),
        JOBS: Jobs((job,), NOW_S, problem=name),
        NODES: Nodes((ClusterNode(node_of(CUBE, name)),), cluster=True, problem=name),
        PAIRS: Pairs((measured_pairs(name),), problem=name),
        OVERVIEW: objects.overview(NOW_S, pools=(pool_of(objects.pool(name, NOW_S, reclaiming=True)),)),
        GPUS: VisibleMap(gpus.gpu_map(4, name=name, problems=(name,))),
        QUEUE: queues.state(NOW_S, queues.queued(f"n/{name}", now_s=NOW_S, queue=name, message=name), problems=(name,)),
        QUOTAS: quota_objects.quotas(NOW_S, name),
        ALERTS: made_alerts.state(name, NOW_S),
        COSTS: metered.state(name),
        EFFICIENCY: made_hours.state(name),
        CAPACITY: made_capacity.state(name),
        MODELS: Models((model,), problems=(name,), serving=(ModelVersion("demand", name, "0" * 64),)),
    }


def measured_pairs(name: str) -> PairsResponse:
    """A cluster of this name and two nodes without a measured pair."""
    nodes = tuple(PairNodeOut(node, Health.HEALTHY, "", (), None) for node in ("a", name))
    model = ModelOut("bandwidth", "1", "0" * 64)
    return PairsResponse(cluster=name, clusters=(name,), nodes=nodes, pairs=(), expected=(), model=model)


def address(page: Page, service: str) -> httpx.URL:
    """The page's path; of a page for each service that of one."""
    if "{name:path}" in page.path:
        return httpx.URL(ADDRESS + page.path.replace("/{name:path}", ""), params={"name": service})
    return httpx.URL(ADDRESS + page.path)


async def answer(
    values: Mapping[AnyFeed, Any], url: httpx.URL, *, example: bool = False, **more: Any
) -> httpx.Response:
    app = create_app(Settings(home=Path("/nowhere")), source=FixedSource(values), example=example)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        return await client.get(url, **more)


def test_paths_and_names_are_unique_and_every_feed_has_an_example() -> None:
    for names in ([page.path for page in PAGES], [page.title for page in PAGES if page.title]):
        assert len(set(names)) == len(names)
    assert set(full("x")) == {SNAPSHOT, *FEEDS}
    assert len({feed.name for feed in (SNAPSHOT, *FEEDS)}) == len(FEEDS) + 1


@every_page
async def test_it_is_answered_without_data(page: Page) -> None:
    reply = await answer({}, address(page, "none"))
    assert reply.status_code == (404 if "{" in page.path else 200)
    assert "<main" in reply.text


@every_page
async def test_it_is_answered_with_data_and_leads_to_every_other(page: Page) -> None:
    reply = await answer(full("chat-00"), address(page, "chat-00"))
    assert reply.status_code == 200
    for other in PAGES:
        if other.title:
            assert f'<a href="{other.path}"' in reply.text
            assert f">{other.title}</a>" in reply.text
    assert reply.text.count(' aria-current="page">') >= 1
    assert "chat-00" in reply.text


@every_page
async def test_its_footer_names_the_models_that_it_shows_and_no_others(page: Page) -> None:
    models = tuple(ModelVersion(name, "7", "0" * 64) for name in predictor_names())
    snapshot = replace(full("chat-00")[SNAPSHOT], endpoint=Endpoint(ADDRESS, models=models))
    reply = await answer({**full("chat-00"), SNAPSHOT: snapshot}, address(page, "chat-00"))
    footer = reply.text.partition("<footer>")[2]
    assert [name for name in predictor_names() if f"{name} version 7" in footer] == sorted(page.predictors)


@every_page
async def test_it_says_that_it_shows_an_example_and_how_to_leave_it(page: Page) -> None:
    url = address(page, "chat-00")
    assert "Example data" not in (await answer(full("chat-00"), url)).text
    text = (await answer(full("chat-00"), url, example=True)).text
    assert "Example data" in text
    assert "kopt up --no-example" in text


@every_page
async def test_hostile_text_stays_text(page: Page) -> None:
    for params in (
        {},
        {"q": HOSTILE, "hours": HOSTILE, "node": HOSTILE, "cluster": HOSTILE, "page": HOSTILE, "job": HOSTILE},
    ):
        url = address(page, HOSTILE)
        reply = await answer(full(HOSTILE), url.copy_merge_params(params))
        assert reply.status_code == 200
        assert "<script>alert" not in reply.text
        assert ">49" not in reply.text
        assert "default-src 'self'" in reply.headers["content-security-policy"]


@pytest.fixture
async def away(tmp_path: Path) -> AsyncIterator[LiveSource]:
    """The live source over an endpoint that refuses every connection, without registry and cluster."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    async with pages_client("http://endpoint", transport=httpx.MockTransport(refuse)) as client:
        histories = FolderHistories(tmp_path / "demand")
        yield LiveSource(histories, client, None, url="http://endpoint", home=tmp_path)


async def test_every_page_is_answered_while_the_endpoint_is_away(away: LiveSource) -> None:
    async with asyncio.timeout(60):
        await away.refresh()
    app = create_app(Settings(home=Path("/nowhere")), source=away)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        for page in PAGES:
            reply = await client.get(address(page, "none"))
            assert reply.status_code == (404 if "{" in page.path else 200), page.path
            if "{" not in page.path:
                assert "The prediction endpoint does not answer as it should." in reply.text
