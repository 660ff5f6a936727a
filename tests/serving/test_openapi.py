"""The published document is the running application's, and every answer is what it promises."""

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from kopt.serving.contract import schemas
from kopt.serving.contract.demand_answers import DemandResponse
from kopt.serving.contract.model_answers import ModelHealthResponse, ModelsResponse
from kopt.serving.contract.recommendation_answers import RecommendationsResponse
from kopt.serving.demand.service import DemandService
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.openapi import document, text
from tests.serving.conftest import history

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def test_the_published_document_is_the_running_one() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == text(), "run: python -m kopt.serving.endpoint.openapi"


def test_every_reference_leads_somewhere() -> None:
    schemas_known = document()["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/(\w+)", text()))
    assert references <= set(schemas_known)
    assert {"DemandRequest", "DemandResponse", "ProblemOut", "InferRequest"} <= references | set(schemas_known)


async def test_the_endpoint_serves_it(http: httpx.AsyncClient) -> None:
    served = (await http.get("/openapi.json")).json()
    assert served == json.loads(PUBLISHED.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/v1/models", ModelsResponse),
        ("/v1/health/models", ModelHealthResponse),
        ("/v1/recommendations", RecommendationsResponse),
        ("/healthz", schemas.StatusResponse),
        ("/readyz", schemas.StatusResponse),
    ],
)
async def test_answers_fit_their_schemas(http: httpx.AsyncClient, endpoint: Endpoint, path: str, schema: type) -> None:
    asked = {"series": [history(gpus=3)], "capacity_per_gpu": 2.0}
    reply = await http.post("/v1/demand", json=asked)
    TypeAdapter(DemandResponse).validate_json(reply.content, strict=True, extra="forbid")
    assert endpoint.service(DemandService).observer is not None
    endpoint.service(DemandService).observer.stop()
    TypeAdapter(schema).validate_json((await http.get(path)).content, strict=True, extra="forbid")


def examples() -> list[tuple[str, str, Any]]:
    """Path, method and value of every example of a request."""
    found = []
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            found += [(path, method, example["value"]) for example in content.get("examples", {}).values()]
    return found


@pytest.mark.parametrize(("path", "method", "value"), examples())
async def test_every_example_is_answered(http: httpx.AsyncClient, path: str, method: str, value: Any) -> None:
    if path.startswith("/v1/demand/"):
        # Buckets of the day on which the example was written are too old by now.
        newest_s = int(time.time()) // 300 * 300 - 300
        value = value | {"t": [newest_s - 300, newest_s]}
    named = path.replace("{service_name}", "research/chat").replace("{name}", "demand")
    reply = await http.request(method.upper(), named, json=value)
    # Other predictors are not loaded in this test; whether they could read the request is said before that.
    assert reply.status_code in (200, 503), reply.text


def test_the_document_says_how_callers_show_who_they_are() -> None:
    published = document()
    assert published["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert published["security"] == [{"token": []}, {}]
    for path in ("/healthz", "/readyz", "/metrics"):
        assert published["paths"][path]["get"]["security"] == []
    bodies = [operation for operations in published["paths"].values() for operation in operations.values()]
    contents = [one["requestBody"]["content"]["application/json"] for one in bodies if "requestBody" in one]
    assert len(contents) >= 7
    assert all(content["examples"] for content in contents)


async def test_problems_fit_their_schema(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/demand", json={})
    schemas.ProblemOut.model_validate_json(reply.content, strict=True, extra="forbid")


def test_every_prediction_says_that_a_foreign_name_is_refused() -> None:
    paths = document()["paths"]
    answers = {path: set(one["post"]["responses"]) for path, one in paths.items() if "post" in one and "/v1/" in path}
    assert answers
    assert [path for path, codes in answers.items() if "421" not in codes] == []
