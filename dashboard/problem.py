"""Errors as problem documents (RFC 9457), for the programs among those who ask."""

from starlette.responses import JSONResponse


def problem_document(status: int, title: str, detail: str) -> JSONResponse:
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    headers = {"cache-control": "no-store"}
    return JSONResponse(document, status, headers, media_type="application/problem+json")
