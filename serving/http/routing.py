"""What routes share: reading a body, writing an answer, and documenting both."""

from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from kopt.serving.contract.examples import EXAMPLES
from kopt.serving.contract.schemas import ProblemOut
from kopt.serving.http.limits import read_json
from kopt.serving.http.problems import from_validation

T = TypeVar("T")
_PROBLEM = {"schema": {"$ref": f"#/components/schemas/{ProblemOut.__name__}"}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    # Not as "model": FastAPI would build one for each status of each route, most of the time that an application takes.
    status: {"content": {"application/json": _PROBLEM, "application/problem+json": {}}, "description": text}
    for status, text in {
        400: "not JSON",
        401: "no valid token (where callers authenticate)",
        403: "no right to this path",
        408: "the body came too slowly",
        413: "too large",
        415: "not application/json",
        421: "not a name of this endpoint (KOPT_HOSTS adds names)",
        422: "invalid, with the fields",
        429: "overloaded, with Retry-After",
        503: "not ready",
    }.items()
}
"""Answers of a route that are no success, for the document."""


async def read_body(request: Request, kind: TypeAdapter[T]) -> T:
    """The validated body. Raises Problem."""
    content = await read_json(request)
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        raise from_validation(error) from None


def json_answer(document: object, status: int = 200) -> Response:
    """A document, or the dataclass that declares it, as it is: an answer is not validated on its way out."""
    return Response(to_json(document), status, media_type="application/json")


def body_of(kind: type[BaseModel]) -> dict[str, Any]:
    """Documents the body of a route that reads it for itself."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    content = {"schema": schema, "examples": EXAMPLES[kind.__name__]}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def query_text(name: str) -> dict[str, Any]:
    """Documents an optional query parameter of a route that reads it for itself."""
    return {"parameters": [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}}]}
