"""Joins the data, the view and the template of the page of quotas."""

import asyncio

from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.quotas.data import QUOTAS
from kopt.dashboard.pages.quotas.view import quotas_page


async def quotas(request: PageRequest) -> Content:
    return {"view": await asyncio.to_thread(quotas_page, await request.latest(QUOTAS))}


PAGE = Page("/quotas", "quotas/template.html", quotas, "Quotas", feeds=(QUOTAS,))
