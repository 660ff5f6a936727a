"""Joins the data, the view and the template of the page of GPUs."""

import asyncio
import json

from starlette.responses import Response

from kopt.dashboard.pages.gpus.data import GPUS
from kopt.dashboard.pages.gpus.view import GpuChoice, gpus_page, map_document
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.problem import problem_document

MAP = "/gpus/map.json"


async def gpus(request: PageRequest) -> Content:
    visible, choice = await request.latest(GPUS), GpuChoice.parse(request.query)
    queued = (await request.latest(QUEUE)).queued if choice.node else ()
    return {"view": await asyncio.to_thread(gpus_page, visible, queued, choice), "choice": choice, "map": MAP}


async def gpu_map(request: PageRequest) -> Response:
    """The map as data; with ``epoch`` and ``since`` of an earlier one what has changed since."""
    since = request.query.get("since", "0")
    if not (since.isascii() and since.isdigit() and len(since) < 16):
        return problem_document(400, "No version", "since is the version of an earlier answer: a whole number.")
    visible = await request.latest(GPUS)
    document = map_document(visible, request.query.get("epoch", ""), int(since))
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json", headers={"cache-control": "private, no-store"})


PAGE = Page("/gpus", "gpus/template.html", gpus, "GPUs", feeds=(GPUS, QUEUE), documents={MAP: gpu_map})
