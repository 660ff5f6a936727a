"""The routes: one page for each question, drawn from one snapshot."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import plotly.graph_objects as go
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from kopt.core.bandwidth import Collective
from kopt.dashboard import assets, figures
from kopt.dashboard.bandwidth_model import BandwidthModel
from kopt.dashboard.cluster import CAUSES, DAYS, PHASES, LedgerChoice, cluster_page
from kopt.dashboard.cluster_figure import pool_chart
from kopt.dashboard.detail import DEFAULT_SPAN_H, SPANS_H, detail, document
from kopt.dashboard.guard import SECURITY_HEADERS
from kopt.dashboard.jobs import DEFAULT_SPAN_H as JOBS_SPAN_H
from kopt.dashboard.jobs import LEGEND, WORDS, jobs_page
from kopt.dashboard.jobs import SPANS_H as JOBS_SPANS_H
from kopt.dashboard.lending import DEFAULT_RISK, RISKS, pools
from kopt.dashboard.modelpage import CoverageLine, model_page
from kopt.dashboard.overview import HORIZONS_S, Choice, overview
from kopt.dashboard.recommendations import recommendations
from kopt.dashboard.rendering import environment, pretty
from kopt.dashboard.sources import Service, Snapshot, Source
from kopt.dashboard.topology import topology_page
from kopt.dashboard.topology_asked import SIZES, asked_of
from kopt.dashboard.topology_pairs import pairs_part
from kopt.dashboard.wording import shortened

POOLS_SHOWN = 24
SERIES_SHOWN = 100


class Pages:
    """The routes over one source."""

    def __init__(self, source: Source, refresh_s: float, bandwidth: BandwidthModel) -> None:
        self._source, self._refresh_s, self._bandwidth = source, refresh_s, bandwidth
        self._templates = environment()

    def add_to(self, app: FastAPI) -> None:
        routes: dict[str, Callable[..., Awaitable[Response]]] = {
            "/": self.services,
            "/services": self.service_by_query,
            "/services/{name:path}": self.service,
            "/data/services": self.service_data,
            "/data/services/{name:path}": self.service_data,
            "/lending": self.lending,
            "/recommendations": self.recommendations,
            "/jobs": self.jobs,
            "/topology": self.topology,
            "/cluster": self.cluster,
            "/models": self.models,
            "/static/{address:path}": self.static,
            "/healthz": self.health,
        }
        for path, endpoint in routes.items():
            app.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
        app.add_api_route("/topology", self.topology, methods=["POST"], response_model=None)
        app.add_exception_handler(HTTPException, self.problem)
        app.add_exception_handler(Exception, self.problem)

    async def services(self, request: Request) -> Response:
        snapshot, choice = await self._source.snapshot(), Choice.parse(request.query_params)
        table = await asyncio.to_thread(overview, snapshot, choice)
        return self._page(request, "services.html", snapshot, table=table, choice=choice, horizons=HORIZONS_S)

    async def service_by_query(self, request: Request) -> Response:
        name = request.query_params.get("name")
        if name is None:
            return RedirectResponse("/", 308)
        return await self._service(request, name)

    async def service(self, request: Request, name: str) -> Response:
        return await self._service(request, name)

    async def _service(self, request: Request, name: str) -> Response:
        snapshot = await self._source.snapshot()
        found = self._found(snapshot, name)
        hours = _chosen(request.query_params.get("hours"), SPANS_H, DEFAULT_SPAN_H)
        horizon_s = _chosen(request.query_params.get("horizon"), HORIZONS_S, HORIZONS_S[-1])
        past, models = await asyncio.gather(self._source.past(found), self._source.models())
        view = await asyncio.to_thread(detail, found, past, models.health, horizon_s)
        charts = {"fan": figures.fan(found, hours)}
        if view.track.forecasts:
            charts["past"] = figures.past(found, view.track.forecasts)
        if view.track.coverage:
            lines = {"champion": [(one.nominal, one.observed) for one in view.track.coverage]}
            charts["calibration"] = figures.calibration(lines)
        return self._page(request, "service.html", snapshot, view=view, service=found, charts=charts, hours=hours,
                          spans=SPANS_H, horizons=HORIZONS_S, cap=figures.tail_cap(found))  # fmt: skip

    async def service_data(self, name: str = "") -> Response:
        found = self._found(await self._source.snapshot(), name)
        return Response(pretty(document(found)), media_type="application/json")

    async def lending(self, request: Request) -> Response:
        snapshot = await self._source.snapshot()
        risk = _chosen(request.query_params.get("risk"), RISKS, DEFAULT_RISK)
        shared, text = request.query_params.get("pools") == "one", request.query_params.get("q", "")[:253]
        services = list(snapshot.services.values())
        found = await asyncio.to_thread(pools, services, risk, shared=shared)
        total = sum((pool.lendable or (0,))[-1] for pool in found), sum(pool.gpus for pool in found)
        wanted = [pool for pool in found if text.casefold() in pool.name.casefold()]
        shown = wanted[:POOLS_SHOWN]
        charts = {f"pool{i}": figures.lending(pool.curve, pool.gpus) for i, pool in enumerate(shown) if pool.curve}
        return self._page(request, "lending.html", snapshot, pools=shown, found=len(wanted), total=total, risk=risk,
                          risks=RISKS, shared=shared, text=text, charts=charts, horizons=HORIZONS_S)  # fmt: skip

    async def recommendations(self, request: Request) -> Response:
        snapshot, sizes = await asyncio.gather(self._source.snapshot(), self._source.sizes())
        text = request.query_params.get("q", "")[:253]
        view = recommendations(sizes, text)
        return self._page(request, "recommendations.html", snapshot, view=view, text=text)

    async def jobs(self, request: Request) -> Response:
        snapshot, jobs = await asyncio.gather(self._source.snapshot(), self._source.jobs())
        text = request.query_params.get("q", "")[:253]
        hours = _chosen(request.query_params.get("hours"), JOBS_SPANS_H, JOBS_SPAN_H)
        view = jobs_page(jobs, text, hours)
        return self._page(request, "jobs.html", snapshot, view=view, text=text, hours=hours, spans=JOBS_SPANS_H,
                          legend=LEGEND, words=WORDS)  # fmt: skip

    async def topology(self, request: Request) -> Response:
        asked = await asked_of(request)
        source = self._source
        snapshot, nodes, measured = await asyncio.gather(source.snapshot(), source.nodes(), source.pairs())
        view = await asyncio.to_thread(lambda: topology_page(nodes, asked, self._bandwidth.current()))
        pairs = await asyncio.to_thread(pairs_part, measured, asked.cluster, asked.pairs)
        charts = dict(view.card.charts) if view.card else {}
        if pairs.card is not None:
            charts["cluster"] = pairs.card.chart
        return self._page(request, "topology.html", snapshot, view=view, asked=asked, charts=charts, sizes=SIZES,
                          collectives=tuple(Collective), pairs=pairs)  # fmt: skip

    async def cluster(self, request: Request) -> Response:
        snapshot, overview_ = await asyncio.gather(self._source.snapshot(), self._source.overview())
        choice = LedgerChoice.parse(request.query_params)
        view = await asyncio.to_thread(cluster_page, overview_, choice)
        charts = {card.chart: pool_chart(card.state, overview_.now_s) for card in view.pools if card.chart}
        return self._page(request, "cluster.html", snapshot, view=view, choice=choice, charts=charts, days=DAYS,
                          phases=PHASES, causes=CAUSES)  # fmt: skip

    async def models(self, request: Request) -> Response:
        snapshot, models = await asyncio.gather(self._source.snapshot(), self._source.models())
        view = model_page(models)
        charts = {"calibration": _calibration(view.coverage)} if view.coverage else {}
        return self._page(request, "models.html", snapshot, view=view, models=models, charts=charts,
                          limit=SERIES_SHOWN)  # fmt: skip

    async def static(self, request: Request, address: str) -> Response:
        found = assets.asset(address)
        if found is None:
            raise HTTPException(404)
        headers = {"cache-control": assets.FOREVER, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(found.compressed, media_type=found.media_type,
                            headers=headers | {"content-encoding": "gzip"})  # fmt: skip
        return Response(found.content, media_type=found.media_type, headers=headers)

    async def health(self) -> Response:
        return JSONResponse({"schema": "kopt/v1", "status": "live"})

    async def problem(self, request: Request, error: Exception) -> Response:
        """Every error as a page in words, or as a problem document where a program asks."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        title, text = _WORDS.get(status, _WORDS[500])
        if isinstance(error, HTTPException) and status == 404 and error.detail != "Not Found":
            text = str(error.detail)
        if request.url.path.startswith(("/data/", "/static/")):
            return JSONResponse({"type": "about:blank", "title": title, "status": status, "detail": text}, status,
                                media_type="application/problem+json")  # fmt: skip
        page = self._templates.get_template("problem.html").render(
            title=title, text=text, status=status, path="", refresh_s=self._refresh_s
        )
        # What handles an unforeseen error stands outside the guard.
        return HTMLResponse(page, status, headers=SECURITY_HEADERS)

    def _found(self, snapshot: Snapshot, name: str) -> Service:
        service = snapshot.services.get(name)
        if service is None:
            raise HTTPException(
                404, f"There is no service {shortened(name)!r}; the list of services has those there are."
            )
        return service

    def _page(self, request: Request, template: str, snapshot: Snapshot, **content: Any) -> Response:
        text = self._templates.get_template(template).render(
            snapshot=snapshot, path=request.url.path, refresh_s=self._refresh_s, query=request.query_params, **content
        )
        # The moment of the snapshot stands in the page, so an equal page means equal data.
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return HTMLResponse(text, headers={"etag": tag})


_WORDS = {
    403: ("Not from here", "A form of another site asked for this page; open it from these pages themselves."),
    404: ("Not here", "This page does not exist."),
    405: ("Only to be read", "These pages are read only; nothing can be changed through them."),
    500: ("Something broke", "This page could not be drawn. The log of the pages says why; the other pages may work."),
}


def _chosen(text: str | None, among: Sequence[Any], otherwise: Any) -> Any:
    """The offered value that the text names, else the default."""
    return next((value for value in among if text == f"{value:g}"), otherwise)


def _calibration(coverage: Sequence[CoverageLine]) -> go.Figure:
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in coverage:
        lines.setdefault(one.role, []).append((one.nominal, one.observed))
    return figures.calibration(lines)
