"""Joins the data, the view and the template of the page of the cluster."""

import asyncio

from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cluster.figure import pool_chart
from kopt.dashboard.pages.cluster.view import CAUSES, DAYS, PHASES, LedgerChoice, cluster_page
from kopt.dashboard.pages.page import Content, Page, PageRequest


async def cluster(request: PageRequest) -> Content:
    overview, choice = await request.latest(OVERVIEW), LedgerChoice.parse(request.query)
    view = await asyncio.to_thread(cluster_page, overview, choice)
    return {
        "view": view,
        "choice": choice,
        "charts": {card.chart: pool_chart(card.state, overview.now_s) for card in view.pools if card.chart},
        "days": DAYS,
        "phases": PHASES,
        "causes": CAUSES,
    }


PAGE = Page("/cluster", "cluster/template.html", cluster, "Cluster", feeds=(OVERVIEW,))
