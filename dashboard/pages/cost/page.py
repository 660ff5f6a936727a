"""Joins the data, the view and the template of the page of costs."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kopt.dashboard.pages.cluster.data import OVERVIEW
from kopt.dashboard.pages.cost.data import COSTS, CostState, HiddenError
from kopt.dashboard.pages.cost.epochs import RunSection, run_section
from kopt.dashboard.pages.cost.interface import EVENTS_PATH, PATH, RUN_PATH, cost, events, run
from kopt.dashboard.pages.cost.query import FIELDS, LONGEST_ROW, CostRequest, QueryError, read_request
from kopt.dashboard.pages.cost.run import run_of
from kopt.dashboard.pages.cost.view import (
    BY_LABELS,
    ROWS,
    SPANS,
    CostPage,
    event_fields,
    page_budgets,
    price_rows,
    report_fields,
)
from kopt.dashboard.pages.page import Content, Page, PageRequest
from kopt.policies.cost.attribution import By
from kopt.policies.cost.runs import RunError
from kopt.serving.base.database.interface import DatabaseError


async def costs(request: PageRequest) -> Content:
    state, overview = await request.latest(COSTS), await request.latest(OVERVIEW)
    query = {name: value for name in FIELDS if (value := request.query.get(name, ""))}
    row, problem = request.query.get("row", "")[:LONGEST_ROW], state.problem or state.recorded.problem
    try:
        question = _request(query)
    except QueryError as error:
        problem, query = f"{error}. Shown are the last 30 days by namespace.", {}
        question = _request(query)
    fields: dict[str, Any] = {}
    shown: RunSection | None = None
    if state.costs is not None and state.recorded.metered_ms is not None:
        try:
            fields = await asyncio.to_thread(_fields, state, question, row)
            if row and question.question.by is By.WORKLOAD and not question.question.label:
                shown = run_section(await run_of(state, question, row, request.query.get("run", "")))
        except RunError as error:
            # Of a row that there is not the section of its events says so.
            problem = f"{error}." if request.query.get("run") else problem
        except HiddenError as error:
            problem = f"You may not list the pods of namespace {error}, or nothing was metered there."
        except DatabaseError as error:
            problem = f"{error}"
    content = CostPage(
        problem=problem,
        configured=state.costs is not None and state.recorded.metered_ms is not None,
        budgets=page_budgets(overview.budgets),
        prices=price_rows(state.recorded.prices),
        **fields,
    )
    return {
        "view": content,
        # Its links are about the same window: by the next click "the last 30 days" are others.
        "asked": query | {"until": _time_text(question.question.end_ms)},
        "row": row,
        "run": shown,
        "spans": SPANS,
        "by_words": BY_LABELS,
        "by": question.question.by,
        "since": query.get("since", "" if query.get("from") else "30d"),
        "namespaces": sorted(state.namespaces),
        "namespace": question.namespace,
    }


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _request(query: Mapping[str, str]) -> CostRequest:
    return read_request(query, int(time.time() * 1000), limit=ROWS)


def _fields(state: CostState, question: CostRequest, row: str) -> dict[str, Any]:
    assert state.costs is not None
    within = state.within_rights(question.question, question.namespace)
    fields = report_fields(state.costs.report(within), within.offset)
    return fields | (event_fields(state.costs.events(within, row)) if row else {})


PAGE = Page(
    "/cost",
    "cost/template.html",
    costs,
    "Cost",
    feeds=(COSTS, OVERVIEW),
    documents={PATH: cost, EVENTS_PATH: events, RUN_PATH: run},
)
