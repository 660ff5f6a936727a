"""``GET /v1/cost``, ``/v1/cost/events`` and ``/v1/cost/run``: the report of ``kopt cost``, what is behind a row, and
what a training cost by epoch, for programs.

They are answered about the namespaces whose pods the caller may list, and about nodes and idleness to those who may
list all of them (ADR 79).
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from kopt.dashboard.pages.cost.data import COSTS, CostState, HiddenError
from kopt.dashboard.pages.cost.query import FIELDS, LONGEST_ROW, CostRequest, QueryError, read_request
from kopt.dashboard.pages.cost.run import run_of
from kopt.dashboard.pages.page import PageRequest
from kopt.dashboard.problem import problem_document
from kopt.policies.cost.documents import events_document, report_document, run_document
from kopt.policies.cost.report import MOST_ROWS
from kopt.policies.cost.runs import RunError
from kopt.serving.base.database.interface import DatabaseError

PATH, EVENTS_PATH, RUN_PATH = "/v1/cost", "/v1/cost/events", "/v1/cost/run"
_RUN_FIELDS = ("row", "run", "since", "from", "until", "namespace")
MOST_EVENTS = 10_000
_AGAIN = {"retry-after": "5"}


async def cost(request: PageRequest) -> Response:
    """The report; 400 names what cannot be asked, 403 a namespace that is not the caller's, 503 what is missing."""
    return await _answered(request, FIELDS, _report)


async def events(request: PageRequest) -> Response:
    """The events behind the row ``row``; 404 where the caller has no such row."""
    return await _answered(request, (*FIELDS, "row"), _events)


async def run(request: PageRequest) -> Response:
    """What the training ``row`` cost by epoch; 404 names those that the caller may ask about."""
    return await _answered(request, _RUN_FIELDS, _run)


Answerer = Callable[[PageRequest, CostState, CostRequest], Awaitable[Response]]


async def _answered(request: PageRequest, fields: tuple[str, ...], answer: Answerer) -> Response:
    state = await request.latest(COSTS)
    if state.costs is None:
        text = "These pages read no meter's database: set KOPT_DATABASE_URL, or pages.costs in the chart."
        return problem_document(503, "No costs", text)
    if state.recorded.metered_ms is None:
        text = state.problem or "Nothing was metered yet; see kopt controller meter --help."
        return problem_document(503, "No costs yet", text, _AGAIN)
    try:
        question = read_request(dict(request.query), int(time.time() * 1000), limit=MOST_ROWS, fields=fields)
        return await answer(request, state, question)
    except QueryError as error:
        return problem_document(400, "This cannot be asked", f"{error}.")
    except HiddenError as error:
        text = f"You may not list the pods of namespace {error}, or nothing was metered there."
        return problem_document(403, "Not yours", text)
    except DatabaseError as error:
        return problem_document(503, "The database does not answer", f"{error}", _AGAIN)


async def _report(_: PageRequest, state: CostState, question: CostRequest) -> Response:
    assert state.costs is not None
    within = state.within_rights(question.question, question.namespace)
    return _json(report_document(await asyncio.to_thread(state.costs.report, within)))


async def _run(request: PageRequest, state: CostState, question: CostRequest) -> Response:
    try:
        return _json(run_document(await run_of(state, question, _row_of(request), request.query.get("run", ""))))
    except RunError as error:
        return problem_document(404, "No such run", f"{error}.")


async def _events(request: PageRequest, state: CostState, question: CostRequest) -> Response:
    assert state.costs is not None
    row = _row_of(request)
    within = state.within_rights(question.question, question.namespace)
    behind = await asyncio.to_thread(state.costs.events, within, row)
    if not behind:
        return problem_document(404, "No such row", "No row that you may see has this name in this window.")
    return _json(events_document(behind[:MOST_EVENTS], len(behind)))


def _row_of(request: PageRequest) -> str:
    row = request.query.get("row", "")
    if not 0 < len(row) <= LONGEST_ROW:
        raise QueryError(f"row is the name of a row, of at most {LONGEST_ROW:,} characters")
    return row


def _json(document: Any) -> Response:
    return Response(
        json.dumps(document, ensure_ascii=False, allow_nan=False),
        media_type="application/json",
        headers={"cache-control": "private, no-store"},
    )
