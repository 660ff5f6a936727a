"""Queries of a Prometheus server (or Thanos, Mimir, VictoriaMetrics): over a range, read into buckets, or of now.

``data.demand.prometheus`` reads the same for training, into frames; this is for a process that stays small.
"""

import math
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import orjson

from kopt.core.scheduling.demand_source import DemandSource
from kopt.formats.serving_metrics import STEP, grouped_query_of
from kopt.serving.contract.common import GRID_S

LARGEST_ANSWER_BYTES = 4 << 20
"""One series of two weeks is 150 KiB."""
_NO_ANSWER = "this is not Prometheus' answer to a range query"
Buckets = dict[int, float]
"""Requests by bucket, numbered from 1970; a bucket that is not there is a gap."""


class PrometheusError(RuntimeError):
    """No buckets; ``reason`` is one word for metrics, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Prometheus:
    """One server behind ``url``. ``token`` gives the bearer token for each query. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] | None = None,
        authority: Path | None = None,
        timeout_s: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._token, self._timeout_s = token, timeout_s
        verify = ssl.create_default_context(cafile=str(authority)) if authority else True
        # Redirects would take the query, and perhaps a token, to a host that was not named.
        self._http = httpx.AsyncClient(
            base_url=url, verify=verify, timeout=timeout_s, trust_env=False, follow_redirects=False, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def buckets(self, source: DemandSource, first: int, last: int) -> Buckets:
        """What was measured in the buckets ``first`` to ``last``. Raises PrometheusError."""
        return read_matrix(await self._range(source.query, first, last), first, last)

    async def grouped(self, sources: Sequence[DemandSource], first: int, last: int) -> list[Buckets | PrometheusError]:
        """``buckets`` of sources of one engine with the same names of labels, in their order, by one query.

        What is wrong with one series stays with its source. Raises PrometheusError where the query as a whole fails.
        """
        query = grouped_query_of(sources[0].engine, [dict(source.labels) for source in sources])
        return read_groups(await self._range(query, first, last), sources, first, last)

    async def _range(self, query: str, first: int, last: int) -> Any:
        # A point is the end of its bucket, as PromQL looks back.
        return await self._post(
            "query_range",
            {
                "query": query.replace(STEP, f"{GRID_S}s"),
                "start": str((first + 1) * GRID_S),
                "end": str((last + 1) * GRID_S),
                "step": str(GRID_S),
                "timeout": f"{self._timeout_s:g}s",
                # Thanos then fails rather than leave out the stores that are down; others ignore it.
                "partial_response": "false",
            },
        )

    async def now(self, query: str, largest_bytes: int | None = None) -> list[tuple[dict[str, str], float]]:
        """The series of a query as of now: labels, the name included, and value. Raises PrometheusError."""
        form = {"query": query, "timeout": f"{self._timeout_s:g}s", "partial_response": "false"}
        document = await self._post("query", form, largest_bytes)
        try:
            return [
                ({str(key): str(text) for key, text in item["metric"].items()}, float(item["value"][1]))
                for item in _series_of(document)
            ]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusError("BadAnswer", "this is not Prometheus' answer to a query") from error

    async def _post(self, path: str, form: dict[str, str], largest_bytes: int | None = None) -> Any:
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token()}"}
        try:
            async with self._http.stream("POST", f"/api/v1/{path}", data=form, headers=headers) as reply:
                body = await _bounded(reply, largest_bytes or LARGEST_ANSWER_BYTES)
        except httpx.TimeoutException as error:
            raise PrometheusError("Timeout", f"Prometheus gave no answer within {self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise PrometheusError("Unreachable", f"Prometheus cannot be reached: {type(error).__name__}") from error
        try:
            document = orjson.loads(body)
        except (ValueError, RecursionError) as error:
            raise PrometheusError("BadAnswer", f"Prometheus answered {reply.status_code} without JSON") from error
        if reply.status_code != 200:
            text = str(document.get("error", ""))[:200] if isinstance(document, dict) else ""
            printable = "".join(letter if letter.isprintable() else " " for letter in text)
            raise PrometheusError(
                "Refused", f"Prometheus answered {reply.status_code}: {printable or 'no reason given'}"
            )
        return document


async def _bounded(reply: httpx.Response, largest_bytes: int) -> bytes:
    body = bytearray()
    async for part in reply.aiter_bytes():
        body += part
        if len(body) > largest_bytes:
            raise PrometheusError("BadAnswer", f"the answer is larger than {largest_bytes >> 20} MiB")
    return bytes(body)


def read_matrix(document: Any, first: int, last: int) -> Buckets:
    """The one series of an answer to a range query. Raises PrometheusError for several, and for what is no demand."""
    series = _series_of(document)
    if len(series) > 1:
        text = f"the query gives {len(series)} series; sum them to one, as in sum(increase(…))"
        raise PrometheusError("SeveralSeries", text)
    return _read_series(series[0], first, last) if series else {}


def read_groups(
    document: Any, sources: Sequence[DemandSource], first: int, last: int
) -> list[Buckets | PrometheusError]:
    """The series of an answer to a grouped query by the labels of ``sources``; empty where there is none."""
    names = [name for name, _ in sources[0].labels]
    by_labels: dict[tuple[str, ...], Any] = {}
    for item in _series_of(document):
        try:
            metric = item["metric"]
            # A label that is absent is an empty one.
            by_labels[tuple([metric.get(name, "") for name in names])] = item
        except (KeyError, TypeError, AttributeError) as error:
            raise PrometheusError("BadAnswer", _NO_ANSWER) from error
    result: list[Buckets | PrometheusError] = []
    for source in sources:
        item = by_labels.get(tuple([value for _, value in source.labels]))
        try:
            result.append({} if item is None else _read_series(item, first, last))
        except PrometheusError as error:
            result.append(error)
    return result


def _series_of(document: Any) -> list[Any]:
    try:
        series = document["data"]["result"]
        return [series[i] for i in range(len(series))]
    except (KeyError, IndexError, TypeError) as error:
        raise PrometheusError("BadAnswer", _NO_ANSWER) from error


def _read_series(item: Any, first: int, last: int) -> Buckets:
    buckets: Buckets = {}
    try:
        for at, text in item["values"]:
            at_s, value = float(at), float(text)
            bucket = round(at_s / GRID_S) - 1 if math.isfinite(at_s) else -1
            if not first <= bucket <= last or abs(at_s - (bucket + 1) * GRID_S) > 1:
                raise PrometheusError("BadAnswer", "Prometheus answered for times that it was not asked for")
            # Written so that neither a gap nor what is no number of requests passes.
            if 0 <= value < math.inf:
                buckets[bucket] = value
            elif not math.isnan(value):
                raise PrometheusError("NoDemand", f"the query gives {value:g}, which is no number of requests")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PrometheusError("BadAnswer", _NO_ANSWER) from error
    return buckets
