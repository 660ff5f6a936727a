"""Range queries of a Prometheus server (or Thanos, Mimir, VictoriaMetrics), read into buckets.

``data.demand.prometheus`` reads the same for training, into frames; this is for a process that stays small.
"""

import math
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from kopt.core.scheduling.demand_source import DemandSource
from kopt.formats.serving_metrics import STEP
from kopt.serving.contract.common import GRID_S

LARGEST_ANSWER_BYTES = 4 << 20
"""One series of two weeks is 150 KiB."""
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
        # A point is the end of its bucket, as PromQL looks back.
        form = {
            "query": source.query.replace(STEP, f"{GRID_S}s"),
            "start": str((first + 1) * GRID_S),
            "end": str((last + 1) * GRID_S),
            "step": str(GRID_S),
            "timeout": f"{self._timeout_s:g}s",
            # Thanos then fails rather than leave out the stores that are down; others ignore it.
            "partial_response": "false",
        }
        document = await self._post(form)
        return read_matrix(document, first, last)

    async def _post(self, form: dict[str, str]) -> Any:
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token()}"}
        try:
            async with self._http.stream("POST", "/api/v1/query_range", data=form, headers=headers) as reply:
                body = await _bounded(reply)
        except httpx.TimeoutException as error:
            raise PrometheusError("Timeout", f"Prometheus gave no answer within {self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise PrometheusError("Unreachable", f"Prometheus cannot be reached: {type(error).__name__}") from error
        try:
            document = httpx.Response(200, content=body).json()
        except (ValueError, RecursionError) as error:
            raise PrometheusError("BadAnswer", f"Prometheus answered {reply.status_code} without JSON") from error
        if reply.status_code != 200:
            text = str(document.get("error", ""))[:200] if isinstance(document, dict) else ""
            shown = "".join(letter if letter.isprintable() else " " for letter in text)
            raise PrometheusError("Refused", f"Prometheus answered {reply.status_code}: {shown or 'no reason given'}")
        return document


async def _bounded(reply: httpx.Response) -> bytes:
    body = bytearray()
    async for part in reply.aiter_bytes():
        body += part
        if len(body) > LARGEST_ANSWER_BYTES:
            raise PrometheusError("BadAnswer", f"the answer is larger than {LARGEST_ANSWER_BYTES >> 20} MiB")
    return bytes(body)


def read_matrix(document: Any, first: int, last: int) -> Buckets:
    """The one series of an answer to a range query. Raises PrometheusError for several, and for what is no demand."""
    try:
        series = document["data"]["result"]
        if len(series) > 1:
            text = f"the query gives {len(series)} series; sum them to one, as in sum(increase(…))"
            raise PrometheusError("SeveralSeries", text)
        points = [(float(at_s), float(value)) for item in series for at_s, value in item["values"]]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PrometheusError("BadAnswer", "this is not Prometheus' answer to a range query") from error
    buckets: Buckets = {}
    for at_s, value in points:
        bucket = round(at_s / GRID_S) - 1 if math.isfinite(at_s) else -1
        if not first <= bucket <= last or abs(at_s - (bucket + 1) * GRID_S) > 1:
            raise PrometheusError("BadAnswer", "Prometheus answered for times that it was not asked for")
        if math.isnan(value):
            continue
        if value < 0 or math.isinf(value):
            raise PrometheusError("NoDemand", f"the query gives {value:g}, which is no number of requests")
        buckets[bucket] = value
    return buckets
