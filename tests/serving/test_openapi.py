"""The published document is the running application's, and every answer is what it promises."""

import json
import re
from pathlib import Path

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


async def test_problems_fit_their_schema(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/demand", json={})
    schemas.ProblemOut.model_validate_json(reply.content, strict=True, extra="forbid")


def test_every_prediction_says_that_a_foreign_name_is_refused() -> None:
    paths = document()["paths"]
    answers = {path: set(one["post"]["responses"]) for path, one in paths.items() if "post" in one and "/v1/" in path}
    assert answers
    assert [path for path, codes in answers.items() if "421" not in codes] == []
