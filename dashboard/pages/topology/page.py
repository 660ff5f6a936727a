"""Joins the data, the view and the template of the page of topologies."""

import asyncio

from kopt.core.hardware.bandwidth import Collective
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.topology.data import NODES, PAIRS, bandwidth_model
from kopt.dashboard.pages.topology.form import SIZES, query_of
from kopt.dashboard.pages.topology.pairs import pairs_part
from kopt.dashboard.pages.topology.view import topology_page


async def topology(request: PageRequest) -> Content:
    query = await query_of(request.request)
    nodes, model = await request.latest(NODES), bandwidth_model(request.settings)
    view = await asyncio.to_thread(lambda: topology_page(nodes, query, model.current()))
    pairs = await asyncio.to_thread(pairs_part, await request.latest(PAIRS), query.cluster, query.pairs)
    charts = dict(view.card.charts) if view.card else {}
    if pairs.card is not None:
        charts["cluster"] = pairs.card.chart
    return {
        "view": view,
        "form": query,
        "charts": charts,
        "sizes": SIZES,
        "collectives": tuple(Collective),
        "pairs": pairs,
    }


PAGE = Page(
    "/topology",
    "topology/template.html",
    topology,
    "Topology",
    feeds=(NODES, PAIRS),
    takes_forms=True,
    predictors=("bandwidth",),
)
