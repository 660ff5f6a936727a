"""The web application of the pages.

Read only but for one form: whoever is logged in may acknowledge an alert; the other forms send what is to be drawn. On
one's own machine there is no cookie and no session; in a cluster everybody logs in (``kopt.dashboard.login``).
``serve`` is the process that ``kopt up`` starts, ``create_app`` the application for tests and for mounting.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kopt.core.settings import Settings
from kopt.dashboard.data.feed import Source
from kopt.dashboard.data.histories import FolderHistories, LiveServices
from kopt.dashboard.data.records import NO_RECORDS, Records
from kopt.dashboard.data.sources import Cluster
from kopt.dashboard.heads import ImpatientProtocol
from kopt.dashboard.live import UNWELL_REFRESH_S, LiveSource
from kopt.dashboard.login.middleware import LoginRequired
from kopt.dashboard.login.routes import Login
from kopt.dashboard.routes import Routes
from kopt.dashboard.security import Guard, PageMetrics, allowed_hosts
from kopt.features.live import open_histories
from kopt.models.registry.registry import Registry
from kopt.serving.client.client import AsyncPredictionClient

REFRESH_S = 15.0
CLIENT_DEADLINE_S = 5.0


def pages_client(url: str, **options: Any) -> AsyncPredictionClient:
    """The pages' client of the endpoint: patient with one answer, quick to notice an endpoint that came up.

    ``options`` as for ``AsyncPredictionClient``.
    """
    return AsyncPredictionClient(url, deadline_s=CLIENT_DEADLINE_S, longest_pause_s=UNWELL_REFRESH_S, **options)


def create_app(
    settings: Settings,
    *,
    source: Source | None = None,
    hosts: Sequence[str] = (),
    refresh_s: float = REFRESH_S,
    cluster: Cluster | None = None,
    example: bool = False,
    login: Login | None = None,
    records: Records = NO_RECORDS,
) -> FastAPI:
    """The pages over ``source``; by default over the endpoint, registry and home that ``settings`` name.

    ``hosts`` are further names under which the pages may be opened; ``cluster`` reads nodes and controllers,
    ``records`` what others have recorded. ``example`` marks every page: what it shows is no real cluster's. With
    ``login`` everybody logs in and sees what they may list in the cluster.
    """
    background: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext
    if source is None:
        client = pages_client(settings.endpoint)
        live = LiveSource(
            LiveServices(FolderHistories(settings.home / "demand"), lambda: open_histories(settings)),
            client,
            Registry(settings),
            url=settings.endpoint,
            home=settings.home,
            cluster=cluster,
            records=records,
            cluster_name=settings.cluster,
        )
        source = live

        @contextlib.asynccontextmanager
        async def background() -> AsyncIterator[None]:
            async with client, contextlib.AsyncExitStack() as stack:
                if cluster is not None:
                    stack.push_async_callback(cluster.close)
                    await stack.enter_async_context(beside(cluster.run()))
                    await stack.enter_async_context(beside(live.follow()))
                async with refreshing(live, refresh_s):
                    yield

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with background():
            yield

    # FastAPI's own documentation pages load scripts from a CDN.
    app = FastAPI(title="kopt pages", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    metrics = PageMetrics()
    Routes(source, refresh_s, settings, example=example, login=login).add_to(app)
    app.add_api_route("/metrics", _reading(metrics), methods=["GET"])
    if login is not None:
        app.add_middleware(LoginRequired, authority=login.authority, sessions=login.sessions)
    app.add_middleware(Guard, hosts=allowed_hosts(settings.api_host, hosts), metrics=metrics)
    return app


def refreshing(live: LiveSource, every_s: float) -> contextlib.AbstractAsyncContextManager[None]:
    """Keeps a source fresh inside the block."""
    return beside(live.run(every_s))


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs what never ends by itself as long as the block does."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _reading(metrics: PageMetrics) -> Callable[[], Response]:
    def read() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return read


def serve(
    settings: Settings,
    port: int | None = None,
    hosts: Sequence[str] = (),
    cluster: Cluster | None = None,
    *,
    example: bool = False,
    login: Login | None = None,
    records: Records = NO_RECORDS,
) -> None:
    """Serve the pages until the process is told to end; loopback unless the settings name another interface."""
    uvicorn.run(
        create_app(
            settings,
            hosts=hosts,
            cluster=cluster,
            example=example,
            login=login,
            records=records,
        ),
        host=settings.api_host,
        port=settings.pages_port if port is None else port,
        log_level="warning",
        server_header=False,
        http=ImpatientProtocol,
        # Open pages ask again by themselves; nobody waits for them at the end.
        timeout_graceful_shutdown=3,
    )
