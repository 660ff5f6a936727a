"""Errors as RFC 9457 problem documents: what was wrong, in which field, and what to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.responses import Response

PROBLEM_JSON = "application/problem+json"
_MOST_ERRORS = 20
_MOST_CHARS = 300
_KINDS = {
    400: ("malformed", "Malformed request"),
    401: ("not-authenticated", "Not authenticated"),
    403: ("not-allowed", "Not allowed"),
    404: ("not-found", "Not found"),
    405: ("method-not-allowed", "Method not allowed"),
    408: ("slow-request", "Request too slow"),
    413: ("too-large", "Request too large"),
    415: ("content-type", "Unsupported content type"),
    421: ("foreign-host", "Misdirected request"),
    422: ("invalid", "Invalid request"),
    429: ("overloaded", "Overloaded"),
    500: ("internal", "Internal error"),
    503: ("not-ready", "Not ready"),
}


@dataclass(frozen=True)
class FieldError:
    """``field`` is a dotted path in the request: ``series.0.value.17``."""

    field: str
    message: str


class Problem(Exception):
    """An answer with ``status`` instead of a result; raise it anywhere under the application."""

    def __init__(
        self, status: int, detail: str, errors: tuple[FieldError, ...] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail)
        self.status, self.detail, self.errors, self.headers = status, detail, errors, dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        kind, title = _KINDS.get(self.status, ("error", "Error"))
        return {
            "type": f"urn:kopt:problem:{kind}",
            "title": title,
            "status": self.status,
            "detail": self.detail[:_MOST_CHARS],
            "error": self.detail[:_MOST_CHARS],
            "errors": [{"field": e.field[:_MOST_CHARS], "message": e.message[:_MOST_CHARS]} for e in self.errors],
        }

    def response(self) -> Response:
        return Response(to_json(self.to_dict()), self.status, self.headers, media_type=PROBLEM_JSON)


def invalid(field: str, message: str) -> Problem:
    """422 for one field."""
    return Problem(422, "The request is not valid.", (FieldError(field, message),))


def from_validation(error: ValidationError, prefix: Sequence[str | int] = ()) -> Problem:
    """422 with the first fields that failed; 400 when the body is not JSON at all. Never repeats the input."""
    result = error.errors(include_url=False, include_context=False, include_input=False)
    if result and result[0]["type"] == "json_invalid":
        return Problem(400, result[0]["msg"])
    reported = tuple(FieldError(_path((*prefix, *item["loc"])), item["msg"]) for item in result[:_MOST_ERRORS])
    return Problem(422, f"The request is not valid: {len(result)} field(s).", reported)


def _path(location: Sequence[str | int]) -> str:
    # Names that the caller chose (tenants, unknown fields) may hold anything; keep the document printable.
    return ".".join(repr(part)[1:-1] if isinstance(part, str) else str(part) for part in location) or "body"
