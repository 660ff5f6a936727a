"""The API as the API server calls it: a value only where a model forecasts, and otherwise none and why, never zero."""

import inspect
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from kopt.cluster.runtime.http import Reply, Request
from kopt.controllers.autoscaling.api import MetricsApi
from kopt.controllers.autoscaling.front_proxy import FrontProxy, common_names, front_proxy_of
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.demand_answers import DemandForecast, DemandQuery, HorizonForecast, SeriesForecast

MODEL = ModelVersion("demand", "1", "digest")
ROOT = "/apis/external.metrics.k8s.io/v1beta1"
AT_S = 1_764_104_400.0


def predicted(amount: float, query: DemandQuery, **fields: Any) -> Prediction:
    values: dict[str, Any] = {"fallback": False, "reasons": (Reason("MIXTURE", "A model.", {}),)} | fields
    quantiles = dict.fromkeys(query.quantiles, amount)
    return Prediction(
        amount, amount, amount, 0.8, "requests", 0.9, MODEL, quantiles=quantiles, features_at_s=AT_S, **values
    )


class Endpoint:
    """Answers with an amount for each horizon, and the fields of one of them."""

    def __init__(self, amounts: list[float], fields: Mapping[int, dict[str, Any]] | None = None) -> None:
        self.amounts, self.fields = amounts, fields or {}
        self.queries: list[DemandQuery] = []

    async def ask(self, query: DemandQuery) -> DemandForecast:
        self.queries.append(query)
        horizons = tuple(
            HorizonForecast(horizon_s, predicted(self.amounts[i], query, **self.fields.get(i, {})))
            for i, horizon_s in enumerate(query.horizons_s)
        )
        return DemandForecast((SeriesForecast(query.series[0].name, "requests", 300, horizons),), MODEL)


async def get(api: MetricsApi, target: str, method: str = "GET") -> tuple[int, Any]:
    reply = api.handle(Request(method, target, b""))
    answer = await reply if inspect.isawaitable(reply) else reply
    assert isinstance(answer, Reply)
    return int(answer.status), json.loads(answer.body)


async def metric(api: MetricsApi, selector: str, name: str = "kopt_requests_per_second") -> tuple[int, Any]:
    return await get(api, f"{ROOT}/namespaces/ml/{name}?labelSelector={selector}")


async def test_discovery_lists_the_metrics_as_namespaced() -> None:
    status, document = await get(MetricsApi(None), ROOT)
    assert status == 200
    assert document["groupVersion"] == "external.metrics.k8s.io/v1beta1"
    named = {resource["name"]: resource["namespaced"] for resource in document["resources"]}
    assert named == {"kopt_requests_per_second": True, "kopt_gpus_needed": True}


async def test_the_largest_demand_within_the_lead_time_counts() -> None:
    endpoint = Endpoint([300.0, 900.5, 600.0])
    status, document = await metric(MetricsApi(endpoint.ask), "service=chat%2Clead=15m%2Cquantile=0.98")
    assert status == 200
    assert endpoint.queries[0].series[0].name == "ml/chat"
    assert list(endpoint.queries[0].quantiles) == [0.98]
    (item,) = document["items"]
    assert item["value"] == f"{math.ceil(1000 * 900.5 / 300)}m"
    assert item["timestamp"] == "2025-11-25T21:00:00Z"
    assert item["metricLabels"] == {"service": "chat", "lead": "15m", "quantile": "0.98"}


async def test_gpus_are_whole() -> None:
    endpoint = Endpoint([1000.0, 1801.0])
    status, document = await metric(
        MetricsApi(endpoint.ask), "service=chat,capacity-per-gpu=900", name="kopt_gpus_needed"
    )
    assert (status, document["items"][0]["value"]) == (200, "3000m")


@pytest.mark.parametrize("horizon", [0, 1])
@pytest.mark.parametrize("code", ["STALE", "NO_FEATURES", "ENDPOINT_UNREACHABLE"])
async def test_without_a_forecast_of_a_model_there_is_no_value(horizon: int, code: str) -> None:
    fallback = {"fallback": True, "reasons": (Reason(code, "Not now.", {}),)}
    counted: list[tuple[str, str]] = []
    api = MetricsApi(Endpoint([1.0, 1.0], {horizon: fallback}).ask, lambda *call: counted.append(call))
    status, document = await metric(api, "service=chat")
    assert (status, document["kind"], document["reason"]) == (404, "Status", "NotFound")
    assert code in document["message"]
    assert "items" not in document
    assert counted == [("kopt_requests_per_second", code)]


async def test_without_an_endpoint_there_is_no_value() -> None:
    status, document = await metric(MetricsApi(None), "service=chat")
    assert (status, "NO_ENDPOINT" in document["message"]) == (404, True)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 404),
        (f"{ROOT}/namespaces/ml", 404),
        (f"{ROOT}/namespaces//kopt_requests_per_second", 404),
        (f"{ROOT}/namespaces/ml/other", 404),
        (f"{ROOT}/namespaces/ml/kopt_requests_per_second", 400),
        (f"{ROOT}/namespaces/ml/kopt_requests_per_second?labelSelector=service%20in%20(a,b)", 400),
        (f"{ROOT}/namespaces/ml/kopt_requests_per_second?labelSelector={'x' * 3000}", 405),
    ],
)
async def test_other_calls_are_answered_with_a_status(target: str, status: int) -> None:
    code, document = await get(MetricsApi(Endpoint([1.0, 1.0]).ask), target)
    assert (code, document["kind"], document["code"]) == (status, "Status", status)


async def test_nothing_is_written() -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert (await get(MetricsApi(None), ROOT, method))[0] == 405


@pytest.mark.parametrize(("error", "status"), [(RequestRefused(422, "no name"), 400), (RuntimeError("bug"), 500)])
async def test_errors_of_the_endpoint_are_answers(error: Exception, status: int) -> None:
    async def ask(query: DemandQuery) -> DemandForecast:
        raise error

    code, document = await metric(MetricsApi(ask), "service=chat")
    assert (code, document["kind"]) == (status, "Status")
    assert "bug" not in document["message"]


def test_the_api_server_is_known_by_its_ca_and_its_name() -> None:
    data = {"requestheader-client-ca-file": "PEM", "requestheader-allowed-names": '["front-proxy-client"]'}
    proxy = front_proxy_of({"data": data})
    assert proxy == FrontProxy(b"PEM", frozenset({"front-proxy-client"}))
    assert front_proxy_of({"data": {}}) is None
    with pytest.raises(ValueError, match="no list of names"):
        front_proxy_of({"data": data | {"requestheader-allowed-names": '"front-proxy-client"'}})
    certificate = {"subject": ((("organizationName", "a"),), (("commonName", "front-proxy-client"),))}
    assert common_names(certificate) == {"front-proxy-client"}
    assert common_names(None) == set()
