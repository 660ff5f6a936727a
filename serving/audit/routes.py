"""``/v1/audit``: records come in by PUT, which is a right of our components alone, and are read by GET."""

import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from kopt.serving.audit.service import AuditService
from kopt.serving.contract.audit_answers import MAX_RECORDS, AuditKept, AuditQuery, AuditResponse
from kopt.serving.contract.audit_schemas import AUDIT_REQUEST, AuditRequest
from kopt.serving.http.auth import AUDIT, caller_of, visible_owner
from kopt.serving.http.problems import invalid
from kopt.serving.http.routing import PROBLEMS, body_of, json_answer, read_body

_MOST = float((1 << 53) - 1)


def routes(app: FastAPI, service: Callable[[], AuditService]) -> None:
    """Add the path to the application."""

    @app.put(
        AUDIT,
        response_model=AuditKept,
        responses=PROBLEMS | {409: PROBLEMS[422] | {"description": "a record that is kept already, with another text"}},
        tags=["audit"],
        openapi_extra=body_of(AuditRequest),
    )
    async def append(request: Request) -> Response:
        """Keep records that a component has sealed; all of them or none."""
        body = await read_body(request, AUDIT_REQUEST)
        return json_answer(await service().append(body, caller_of(request)))

    @app.get(AUDIT, response_model=AuditResponse, responses=PROBLEMS, tags=["audit"], openapi_extra=_parameters())
    async def read(request: Request) -> Response:
        """The newest records, or with ``after`` those behind a position; what is enough to verify them comes along."""
        # Where callers do not authenticate, everybody sees everything.
        return json_answer(await service().read(_query(request), visible_owner(request) or None))


_POSITIONS = ("after", "before", "limit")
_TIMES = ("since_s", "until_s")
_NUMBERS = (*_POSITIONS, *_TIMES)
_TEXTS = ("component", "kind", "namespace", "name")


def _parameters() -> dict[str, Any]:
    kinds = dict.fromkeys(_NUMBERS, "number") | dict.fromkeys(_TEXTS, "string")
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": {"type": kind}} for name, kind in kinds.items()
        ]
    }


def _query(request: Request) -> AuditQuery:
    """Raises Problem 422."""
    parameters = request.query_params
    for name in parameters:
        if name not in (*_NUMBERS, *_TEXTS):
            raise invalid(name, f"is none of {', '.join((*_NUMBERS, *_TEXTS))}")
    times = {name: _number(name, parameters[name]) for name in _TIMES if name in parameters}
    positions = {name: int(_number(name, parameters[name])) for name in _POSITIONS if name in parameters}
    if not 1 <= positions.get("limit", 1) <= MAX_RECORDS:
        raise invalid("limit", f"is not from 1 to {MAX_RECORDS}")
    texts = {name: parameters[name] for name in _TEXTS if name in parameters}
    return AuditQuery(**positions, **times, **texts)  # type: ignore[arg-type]


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        raise invalid(name, "is no number from 0 on")
    return value
