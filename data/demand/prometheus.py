"""Demand from a Prometheus server (or Thanos, Mimir, VictoriaMetrics) by range queries.

A point at time T is taken as the bucket that *ends* at T, as PromQL looks back. For counters ask for the increase
over one step, summed so that one series per service is left::

    sum by (service) (increase(requests_total[$step]))

``$step`` stands for the step. Where the server has no value, the series has a gap; zero is only what the server says
is zero.
"""

import io
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from kopt.data.demand.grid import MAX_BUCKETS, on_grid
from kopt.data.demand.table import GRID_S, Array, DemandDataError, DemandSeries

CHUNK_POINTS = 5_000
"""Points per series and query; Prometheus refuses more than 11,000."""
MAX_SERIES = 2_000
MAX_VALUES = 200_000_000
MAX_ANSWER_BYTES = 512 << 20
Progress = Callable[[int, int], None]


class PrometheusError(DemandDataError):
    """The server did not answer, or not with data: it is down, slow, starting, or refuses the query."""


class Server:
    """One Prometheus server behind ``url``, with retries and limits.

    Every request has ``timeout_s`` seconds as a whole, and is tried ``retries`` times again, with exponential
    back-off from ``backoff_s``, where the connection fails or the server is overloaded. ``token`` is sent as bearer
    token and never shown. ``authority`` is a file with the certificates that the server's has to be signed by.

    Raises:
        PrometheusError: ``url`` is not one of http or https.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        retries: int = 3,
        backoff_s: float = 0.5,
        token: str = "",
        authority: Path | None = None,
    ) -> None:
        self.display_url = _without_secrets(url)
        self.timeout_s = timeout_s
        retry = Retry(
            total=retries,
            backoff_factor=backoff_s,
            backoff_max=10,
            status_forcelist=(429, 500, 502, 503, 504),
            raise_on_status=False,
            # A server must not be able to make us sleep for hours.
            respect_retry_after_header=False,
        )
        self._url = url.rstrip("/")
        self._session = requests.Session()
        self._session.hooks["response"].append(self._refuse)
        if authority is not None:
            self._session.verify = str(authority)
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        self._client = PrometheusConnect(self._url, session=self._session, timeout=timeout_s, retry=retry)
        # After the client, which mounts its own adapter without limits at this address.
        self._session.mount(self._url, _Bounded(timeout_s, retries, retry))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def check_ready(self) -> None:
        """Raises PrometheusError when the server is down or still starting (``/-/ready``).

        Answers 404 and 405 pass: not every server that speaks Prometheus' query language has this address.
        """
        address, trusted = f"{self._url}/-/ready", self._session.verify
        # By name: without it, REQUESTS_CA_BUNDLE of the environment goes before the session's.
        self._ask("readiness", lambda: self._session.get(address, timeout=self.timeout_s, verify=trusted))

    def query_range(self, query: str, start_s: float, end_s: float, step_s: int) -> list[dict[str, Any]]:
        """The series of Prometheus' answer (matrix) for points from ``start_s`` to ``end_s``, both included.

        Raises PrometheusError: down, slow, refused, too large, or no answer of Prometheus.
        """
        begin, end = datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC)
        # Thanos then fails instead of leaving out the stores that are down; others ignore it.
        more = {"timeout": f"{self.timeout_s:.0f}s", "partial_response": "false"}
        what = f"query from {begin:%Y-%m-%d %H:%M}"
        result = self._ask(what, lambda: self._client.custom_query_range(query, begin, end, str(step_s), params=more))
        if not isinstance(result, list) or not all(isinstance(item, dict) for item in result):
            raise PrometheusError(f"{self.display_url} did not answer like Prometheus")
        return result

    def _ask(self, what: str, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, PrometheusError):
                raise
            raise PrometheusError(f"{self.display_url} {self._why(error)} ({what})") from error

    def _why(self, error: Exception) -> str:
        # requests reports a read timeout after retries as a connection error around the real reason.
        reason = getattr(error.args[0], "reason", None) if error.args else None
        root = reason or error
        # urllib3 counts a refused connection among the timeouts.
        is_timeout = isinstance(root, (requests.Timeout, urllib3.exceptions.TimeoutError))
        if is_timeout and not isinstance(root, urllib3.exceptions.NewConnectionError):
            return f"gave no answer within {self.timeout_s:g} s; ask for less history or set a longer timeout"
        # The text before the last colon names addresses and the query.
        cause = _plain(str(root).rpartition(": ")[2])
        if isinstance(error, requests.ConnectionError):
            return f"cannot be reached: {cause}"
        if isinstance(error, (requests.exceptions.InvalidJSONError, ValueError, KeyError, TypeError)):
            return "did not answer like Prometheus"
        return f"failed: {cause}"

    def _refuse(self, response: requests.Response, *_: object, **__: object) -> None:
        """Turns error answers into errors with the server's own words."""
        code = response.status_code
        if response.is_redirect:
            # Following would take the query, and perhaps a token, to a host that the user did not name.
            raise PrometheusError(
                f"{self.display_url} redirects to {_plain(response.headers['location'])}; give that address"
            )
        if code < 400 or (code in (404, 405) and response.url.endswith("/-/ready")):
            return
        try:
            text = str(response.json()["error"])
        except (ValueError, KeyError, TypeError):
            text = response.text.strip()
        hint = {401: "; it wants a token", 403: "; it wants a token", 503: "; it is starting or overloaded"}.get(
            code, ""
        )
        raise PrometheusError(f"{self.display_url} answered {code}{hint}: {_plain(text) or 'no reason given'}")


def _without_secrets(url: str) -> str:
    """The address without user and password; raises PrometheusError where it is not one of http or https."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise PrometheusError("give the server as http://host:9090 or https://…")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def _plain(text: str) -> str:
    """The message of another machine, short and safe to print."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:300])


class _Bounded(HTTPAdapter):
    """Reads answers within a time as a whole and up to a size; requests itself bounds only the wait for each byte."""

    def __init__(self, timeout_s: float, retries: int, retry: Retry) -> None:
        super().__init__(max_retries=retry)
        self._allowed_s = timeout_s * (1 + retries)

    def send(self, request: requests.PreparedRequest, *args: Any, **more: Any) -> requests.Response:
        deadline = time.monotonic() + self._allowed_s
        response = super().send(request, *args, **more | {"stream": True})
        body = io.BytesIO()
        # read1 returns what has come, where iter_content would wait for a whole block.
        while part := response.raw.read1(1 << 16, decode_content=True):
            body.write(part)
            if body.tell() > MAX_ANSWER_BYTES:
                raise requests.RequestException(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() > deadline:
                raise requests.ReadTimeout("the answer took too long")
        response.close()
        body.seek(0)
        response.raw = body
        return response


def read_demand(
    url: str,
    query: str,
    since_s: float,
    step_s: int = GRID_S,
    *,
    label: str = "service",
    unit: str = "requests",
    until_s: float | None = None,
    timeout_s: float = 30.0,
    retries: int = 3,
    token: str = "",
    max_series: int = MAX_SERIES,
    progress: Progress | None = None,
) -> list[DemandSeries]:
    """One series per value of ``label``: the last ``since_s`` seconds before ``until_s`` (now) in steps of ``step_s``.

    Points lie on multiples of the step. A series begins with its first value and ends with the last bucket asked for,
    so a service that has fallen silent ends in gaps. With ``label=""`` the query must give one series, which is called
    ``demand``. ``progress`` is called with the chunks done and their number.

    Raises:
        PrometheusError: the server is down, slow, starting, refuses the query, or answers with something else.
        DemandDataError: no data, too many series, a series without the label or twice with the same, values that are
            no demand, a rate where a count was asked for.
    """
    if unit == "requests" and re.search(r"\bi?rate\s*\(", query):
        raise DemandDataError(f"the query gives a rate per second; use increase(…[{step_s}s]), or name the unit")
    if step_s < 1 or not step_s <= since_s <= MAX_BUCKETS * step_s:
        raise DemandDataError(
            f"{since_s:g} s of history in steps of {step_s} s is not between 1 and {MAX_BUCKETS} buckets"
        )
    end_s = math.floor((time.time() if until_s is None else until_s) / step_s) * step_s
    first_s = end_s - (math.floor(since_s / step_s) - 1) * step_s
    points: dict[str, tuple[list[Array], list[Array]]] = {}
    chunks = list(_chunks(first_s, end_s, step_s))
    with Server(url, timeout_s=timeout_s, retries=retries, token=token) as server:
        server.check_ready()
        for done, (begin, end) in enumerate(chunks, 1):
            answer = server.query_range(query.replace("$step", f"{step_s}s"), begin, end, step_s)
            _add(points, answer, label, max_series)
            if progress:
                progress(done, len(chunks))
    if not points:
        raise DemandDataError(
            f"{server.display_url} has no data for the query in the last {since_s:g} s: {query[:200]}"
        )
    if len(points) * (since_s / step_s) > MAX_VALUES:
        raise DemandDataError(f"{len(points)} series of {since_s / step_s:.0f} buckets are too many; ask for less")
    return [_series(name, times, values, end_s, step_s, unit) for name, (times, values) in sorted(points.items())]


def _chunks(first_s: int, end_s: int, step_s: int) -> Iterator[tuple[int, int]]:
    """First and last point of every query."""
    for begin in range(first_s, end_s + 1, CHUNK_POINTS * step_s):
        yield begin, min(begin + (CHUNK_POINTS - 1) * step_s, end_s)


def _add(
    points: dict[str, tuple[list[Array], list[Array]]], answer: list[dict[str, Any]], label: str, max_series: int
) -> None:
    names = set()
    for item in answer:
        name = _name(item, label)
        if name in names:
            hint = f"use sum by ({label}) (…)" if label else "name the label that tells them apart"
            raise DemandDataError(f"the query gives it more than once; {hint}", series=name)
        names.add(name)
        try:
            samples = np.array(item["values"], dtype=np.float64).reshape(-1, 2)
        except (KeyError, ValueError, TypeError) as error:
            raise PrometheusError("not a matrix of numbers as Prometheus answers it", series=name) from error
        times, values = points.setdefault(name, ([], []))
        times.append(samples[:, 0])
        values.append(samples[:, 1])
        if len(points) > max_series:
            raise DemandDataError(f"more than {max_series} series; narrow the query or sum by a coarser label")


def _name(item: dict[str, Any], label: str) -> str:
    metric = item.get("metric")
    if not isinstance(metric, dict):
        raise PrometheusError("a series of the answer has no labels; this is not Prometheus")
    if not label:
        return "demand"
    name = metric.get(label)
    if not isinstance(name, str) or not name:
        present = ", ".join(sorted(str(key) for key in metric)) or "none"
        raise DemandDataError(f"a series has no label {label!r} (it has {present[:200]}); use sum by ({label}) (…)")
    return name


def _series(name: str, times: list[Array], values: list[Array], end_s: int, step_s: int, unit: str) -> DemandSeries:
    grid = on_grid(name, np.concatenate(times), {"value": np.concatenate(values)}, step_s=step_s)
    length = round((end_s - grid.start_s) / step_s) + 1
    if length < len(grid.columns["value"]):
        raise PrometheusError("the server answered with later times than it was asked for", series=name)
    value = np.full(length, np.nan)
    value[: len(grid.columns["value"])] = grid.columns["value"]
    # A point is the end of its bucket.
    return DemandSeries(name, grid.start_s - step_s, step_s, value, unit=unit, start_known=True)


def rows_of(answer: list[dict[str, Any]]) -> Iterator[tuple[Mapping[str, str], list[tuple[float, float]]]]:
    """Labels and points (Unix seconds, value) of each series. Raises PrometheusError for anything but numbers."""
    try:
        for item in answer:
            labels = {str(key): str(value) for key, value in item["metric"].items()}
            yield labels, [(float(at_s), float(value)) for at_s, value in item["values"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError("not a matrix of numbers as Prometheus answers it") from error
