"""Joins the data, the view and the template of the page of capacity."""

import asyncio

from kopt.dashboard.pages.capacity.data import CAPACITY
from kopt.dashboard.pages.capacity.view import DELIVERIES, DELIVERY, capacity_page
from kopt.dashboard.pages.page import Content, Page, PageRequest


async def capacity(request: PageRequest) -> Content:
    """A delivery that is not offered is the default."""
    weeks = request.choice("delivery", DELIVERIES, DELIVERY)
    drawn = await asyncio.to_thread(capacity_page, await request.latest(CAPACITY), weeks)
    return {"view": drawn, "deliveries": DELIVERIES, "delivery": weeks, "weeks_text": weeks_text}


def weeks_text(weeks: int) -> str:
    return f"{weeks} weeks" if weeks else "at once"


PAGE = Page("/capacity", "capacity/template.html", capacity, "Capacity", feeds=(CAPACITY,))
