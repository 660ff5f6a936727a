"""Joins the data, the view and the template of the page of queues."""

import asyncio

from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.interface import PATH, why
from kopt.dashboard.pages.queue.view import QueueChoice, queue_page


async def queue(request: PageRequest) -> Content:
    state, choice = await request.latest(QUEUE), QueueChoice.parse(request.search, request.query.get("job", ""))
    return {"view": await asyncio.to_thread(queue_page, state, choice), "choice": choice}


PAGE = Page("/queue", "queue/template.html", queue, "Queue", feeds=(QUEUE,), documents={PATH: why})
