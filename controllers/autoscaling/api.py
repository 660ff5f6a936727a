"""The API ``external.metrics.k8s.io/v1beta1`` as the API server calls it: discovery, and one metric at a time.

https://github.com/kubernetes/metrics/blob/master/pkg/apis/external_metrics/v1beta1/types.go
"""

import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import unquote

import orjson

from kopt.cluster.runtime.http import Reply, Request
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.controllers.autoscaling.forecasts import Ask, MetricValue, NoForecastError, demand_query, value_of
from kopt.controllers.autoscaling.metric_query import MetricName, MetricQuery, SelectorError, read_query
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.core.times import stamp
from kopt.core.untrusted import printable
from kopt.serving.client.transport import RequestRefused

_LOG = logging.getLogger(__name__)
GROUP_VERSION = "external.metrics.k8s.io/v1beta1"
_ROOT = f"/apis/{GROUP_VERSION}"
_LONGEST_TARGET, _LONGEST_MESSAGE = 2048, 500
Count = Callable[[str, str], None]
"""Metric and outcome of a call."""


class MetricsApi:
    """``ask`` is None where there is no endpoint: then there are no metrics. ``handle`` does not raise."""

    def __init__(
        self,
        ask: Ask | None,
        count: Count = lambda *_: None,
        clock: Callable[[], float] = time.time,
        gate: Gate = OPEN,
    ) -> None:
        self._ask, self._count, self._clock, self._gate = ask, count, clock, gate

    def handle(self, request: Request) -> Reply | Awaitable[Reply]:
        path = request.path.rstrip("/")
        if request.method != "GET" or len(request.target) > _LONGEST_TARGET:
            return failure(HTTPStatus.METHOD_NOT_ALLOWED, "MethodNotAllowed", "metrics are read, one at a time")
        if path == _ROOT:
            return Reply(orjson.dumps(_RESOURCES))
        parts = [unquote(part) for part in path.removeprefix(f"{_ROOT}/namespaces/").split("/")]
        if not path.startswith(f"{_ROOT}/namespaces/") or len(parts) != 2 or not all(parts):
            return failure(HTTPStatus.NOT_FOUND, "NotFound", f"there is {_ROOT}/namespaces/NAMESPACE/METRIC")
        return self._metric(parts[0], parts[1], request.argument("labelSelector"))

    async def _metric(self, namespace: str, metric: str, selector: str) -> Reply:
        try:
            name = MetricName(metric)
        except ValueError:
            names = " and ".join(MetricName)
            return failure(HTTPStatus.NOT_FOUND, "NotFound", f"no metric {printable(metric, 63)!r}; there are {names}")
        try:
            query = read_query(name, namespace, selector)
            value = await self._value(query)
        except (SelectorError, RequestRefused) as error:
            self._count(name, "refused")
            return failure(HTTPStatus.BAD_REQUEST, "BadRequest", str(error))
        except NoForecastError as error:
            # No item instead would say "no metrics returned", and not why.
            self._count(name, error.code)
            return failure(HTTPStatus.NOT_FOUND, "NotFound", str(error))
        except Exception:  # noqa: BLE001 - edge of a call: a fault of ours must not take the process from others
            _LOG.exception("a call for %s failed", name)
            self._count(name, "failed")
            return failure(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", "internal error; see the log")
        self._count(name, "answered")
        return Reply(orjson.dumps(self._list(query, value)))

    async def _value(self, query: MetricQuery) -> MetricValue:
        if self._ask is None:
            raise NoForecastError("NO_ENDPOINT", f"{query.series} has no forecast (NO_ENDPOINT): give --predictions")
        namespace, _, service = query.series.partition("/")
        owner = Owner.of("services", namespace, service)
        if self._gate.mode("autoscaling", owner, Mode.ENFORCE) is Mode.OBSERVE:
            text = f"{query.series} has no forecast (SWITCHED_OFF): see kopt features"
            raise NoForecastError("SWITCHED_OFF", text)
        return value_of(query, await self._ask(demand_query(query)))

    def _list(self, query: MetricQuery, value: MetricValue) -> dict[str, object]:
        item = {
            "metricName": query.name,
            "metricLabels": dict(query.labels),
            "timestamp": stamp(self._clock() if value.at_s is None else value.at_s),
            "value": f"{value.thousandths}m",
        }
        return {"kind": "ExternalMetricValueList", "apiVersion": GROUP_VERSION, "metadata": {}, "items": [item]}


_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": GROUP_VERSION,
    "resources": [
        {
            "name": name,
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
        for name in MetricName
    ],
}


def failure(status: HTTPStatus, reason: str, message: str) -> Reply:
    """As Kubernetes says what went wrong: the autoscaler shows the message in its conditions."""
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": printable(message, _LONGEST_MESSAGE),
        "reason": reason,
        "code": int(status),
    }
    return Reply(orjson.dumps(document), status)
