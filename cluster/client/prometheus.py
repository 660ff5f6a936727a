"""Queries of a Prometheus server (or Thanos, Mimir, VictoriaMetrics) by a process that stays small.

``data.demand.prometheus`` asks the same servers for training, with retries and as much history as there is.
"""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import orjson

TIMEOUT_S = 10.0
LARGEST_ANSWER_BYTES = 4 << 20
"""One series of two weeks is 150 KiB."""


class PrometheusError(RuntimeError):
    """No answer, or not the one that was asked for; ``reason`` is one word for metrics, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def token_of(file: Path | None) -> Callable[[], str] | None:
    """What reads the bearer token in a file, anew for each query; None without a file."""
    if file is None:
        return None

    def read() -> str:
        try:
            return file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise PrometheusError("NoToken", f"{file}: {error.strerror}") from error

    return read


@dataclass(frozen=True)
class PrometheusAddress:
    """Where a server is; without ``url`` there is none. ``token_file`` has a bearer token, read again for each query,
    ``certificate_authority`` the CA of its certificate, else those of the system count."""

    url: str = ""
    token_file: Path | None = None
    certificate_authority: Path | None = None


class Prometheus:
    """One server behind ``url``. ``token`` gives the bearer token for each query. Use as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: Callable[[], str] | None = None,
        authority: Path | None = None,
        timeout_s: float = TIMEOUT_S,
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

    async def over(self, query: str, start_s: int, end_s: int, step_s: int, largest_bytes: int | None = None) -> Any:
        """The answer to a range query, as it was decoded. Raises PrometheusError."""
        form = {"query": query, "start": str(start_s), "end": str(end_s), "step": str(step_s)}
        return await self._post("query_range", form, largest_bytes)

    async def now(self, query: str, largest_bytes: int | None = None) -> list[tuple[dict[str, str], float]]:
        """The series of a query as of now: labels, the name included, and value. Raises PrometheusError."""
        document = await self._post("query", {"query": query}, largest_bytes)
        try:
            return [
                ({str(key): str(text) for key, text in item["metric"].items()}, float(item["value"][1]))
                for item in series_of(document)
            ]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise PrometheusError("BadAnswer", "this is not Prometheus' answer to a query") from error

    async def _post(self, path: str, form: dict[str, str], largest_bytes: int | None = None) -> Any:
        headers = {} if self._token is None else {"authorization": f"Bearer {self._token()}"}
        # Thanos then fails rather than leave out the stores that are down; others ignore it.
        form = form | {"timeout": f"{self._timeout_s:g}s", "partial_response": "false"}
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


Query = Callable[[str], Awaitable[list[tuple[dict[str, str], float]]]]
"""Series of a query as of now. Raises PrometheusError."""


@contextlib.asynccontextmanager
async def server_at(address: PrometheusAddress, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Prometheus | None]:
    """The server as long as the context lasts; None where there is none."""
    if not address.url:
        yield None
        return
    token, authority = token_of(address.token_file), address.certificate_authority
    async with Prometheus(address.url, token=token, authority=authority, timeout_s=timeout_s) as server:
        yield server


@contextlib.asynccontextmanager
async def asking(address: PrometheusAddress, largest_bytes: int = LARGEST_ANSWER_BYTES) -> AsyncIterator[Query | None]:
    """What asks a server as long as the context lasts; None where there is none."""
    async with server_at(address) as server:
        if server is None:
            yield None
            return

        async def query(text: str) -> list[tuple[dict[str, str], float]]:
            return await server.now(text, largest_bytes)

        yield query


async def _bounded(reply: httpx.Response, largest_bytes: int) -> bytes:
    body = bytearray()
    async for part in reply.aiter_bytes():
        body += part
        if len(body) > largest_bytes:
            raise PrometheusError("BadAnswer", f"the answer is larger than {largest_bytes >> 20} MiB")
    return bytes(body)


def series_of(document: Any) -> list[Any]:
    """The series of an answer, as they came. Raises PrometheusError."""
    try:
        series = document["data"]["result"]
        return [series[i] for i in range(len(series))]
    except (KeyError, IndexError, TypeError) as error:
        raise PrometheusError("BadAnswer", "this is not Prometheus' answer to a query") from error
