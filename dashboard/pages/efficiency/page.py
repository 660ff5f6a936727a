"""Joins the data, the view and the template of the page of efficiency."""

import asyncio

from kopt.dashboard.pages.efficiency.data import EFFICIENCY, WINDOWS_S
from kopt.dashboard.pages.efficiency.view import BY, efficiency_page
from kopt.dashboard.pages.page import Content, Page, PageRequest


async def efficiency(request: PageRequest) -> Content:
    """What the address asks for and is not offered is the default."""
    window, by = request.query.get("since", ""), request.query.get("by", "")
    window = window if window in WINDOWS_S else "24h"
    by = by if by in BY else "kind"
    drawn = await asyncio.to_thread(efficiency_page, await request.latest(EFFICIENCY), window, by)
    return {"view": drawn, "windows": tuple(WINDOWS_S), "window": window, "by_words": BY, "by": by}


PAGE = Page("/efficiency", "efficiency/template.html", efficiency, "Efficiency", feeds=(EFFICIENCY,))
