"""Joins the data, the view and the template of the page of lending."""

import asyncio

from kopt.dashboard import figures
from kopt.dashboard.pages.lending.view import DEFAULT_RISK, RISKS, pools
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.serving.contract.common import DEFAULT_HORIZONS_S

MOST_POOLS = 24


async def lending(request: PageRequest) -> Content:
    risk = request.choice("risk", RISKS, DEFAULT_RISK)
    shared, text = request.query.get("pools") == "one", request.search
    services = list(request.snapshot.services.values())
    all_pools = await asyncio.to_thread(pools, services, risk, shared=shared)
    matches = [pool for pool in all_pools if text.casefold() in pool.name.casefold()]
    drawn = matches[:MOST_POOLS]
    return {
        "pools": drawn,
        "matching": len(matches),
        "total": (sum((pool.lendable or (0,))[-1] for pool in all_pools), sum(pool.gpus for pool in all_pools)),
        "risk": risk,
        "risks": RISKS,
        "shared": shared,
        "text": text,
        "charts": {f"pool{i}": figures.lending(pool.curve, pool.gpus) for i, pool in enumerate(drawn) if pool.curve},
        "horizons": DEFAULT_HORIZONS_S,
    }


PAGE = Page("/lending", "lending/template.html", lending, "Lending", predictors=("demand",))
