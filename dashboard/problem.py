"""Errors as problem documents (RFC 9457), for the programs among those who ask."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

FOR_PROGRAMS = ("/data/", "/static/", "/v1/")
"""Addresses below these are read by programs."""


def problem_document(status: int, title: str, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    every = {"cache-control": "no-store", **(headers or {})}
    return JSONResponse(document, status, every, media_type="application/problem+json")
