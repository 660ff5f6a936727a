"""Joins the data, the views and the templates of the table of services and of the page of each."""

import asyncio

from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from kopt.dashboard import figures
from kopt.dashboard.data.sources import Service
from kopt.dashboard.formatting import shortened
from kopt.dashboard.pages.models.data import MODELS
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.services.data import PAST
from kopt.dashboard.pages.services.detail import DEFAULT_SPAN_H, SPANS_H, detail, document
from kopt.dashboard.pages.services.view import HORIZONS_S, Choice, overview
from kopt.dashboard.rendering import pretty


async def services(request: PageRequest) -> Content:
    choice = Choice.parse(request.query)
    table = await asyncio.to_thread(overview, request.snapshot, choice)
    return {"table": table, "choice": choice, "horizons": HORIZONS_S}


async def service(request: PageRequest) -> Content | Response:
    name = _name(request)
    if name is None:
        return RedirectResponse("/", 308)
    service = _named(request, name)
    hours = request.choice("hours", SPANS_H, DEFAULT_SPAN_H)
    horizon_s = request.choice("horizon", HORIZONS_S, HORIZONS_S[-1])
    past_of = await request.latest(PAST)
    past, models = await asyncio.gather(past_of(service, request.snapshot.endpoint), request.latest(MODELS))
    view = await asyncio.to_thread(detail, service, past, models.health, horizon_s)
    charts = {"fan": figures.fan(service, hours)}
    if view.track.forecasts:
        charts["past"] = figures.past(service, view.track.forecasts)
    if view.track.coverage:
        lines = {"champion": [(coverage.nominal, coverage.observed) for coverage in view.track.coverage]}
        charts["calibration"] = figures.calibration(lines)
    return {
        "view": view,
        "service": service,
        "charts": charts,
        "hours": hours,
        "spans": SPANS_H,
        "horizons": HORIZONS_S,
        "cap": figures.tail_cap(service),
    }


async def service_document(request: PageRequest) -> Response:
    """The data of one service as JSON."""
    service = _named(request, _name(request) or "")
    return Response(pretty(document(service)), media_type="application/json")


def _name(request: PageRequest) -> str | None:
    """In the path, or in the query for names that a path cannot hold."""
    name: str | None = request.request.path_params.get("name", request.query.get("name"))
    return name


def _named(request: PageRequest, name: str) -> Service:
    service = request.snapshot.services.get(name)
    if service is None:
        raise HTTPException(404, f"There is no service {shortened(name)!r}; the list of services has those there are.")
    return service


PAGE = Page("/", "services/template.html", services, "Services", covers="/services", predictors=("demand",))
SERVICE = Page(
    "/services/{name:path}",
    "services/service.html",
    service,
    feeds=(PAST, MODELS),
    predictors=("demand",),
    aliases=("/services",),
    documents={"/data/services": service_document, "/data/services/{name:path}": service_document},
)
