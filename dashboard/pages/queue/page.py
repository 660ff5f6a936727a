"""Joins the data, the view and the template of the page of queues."""

import asyncio

from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.interface import PATH, why
from kopt.dashboard.pages.queue.recorded import RECORDED, Recorded
from kopt.dashboard.pages.queue.view import QueueChoice, queue_page


async def queue(request: PageRequest) -> Content:
    state, choice = await request.latest(QUEUE), QueueChoice.parse(request.search, request.query.get("job", ""))
    view = await asyncio.to_thread(queue_page, state, choice)
    recorded = Recorded()
    if view.selected is not None and view.selected.explained:
        actions = await request.latest(RECORDED)
        recorded = await actions.of([row.queued for row, _ in view.selected.explained])
    return {"view": view, "choice": choice, "recorded": recorded}


PAGE = Page("/queue", "queue/template.html", queue, "Queue", feeds=(QUEUE, RECORDED), documents={PATH: why})
