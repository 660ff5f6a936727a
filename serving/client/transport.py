"""Requests to the prediction endpoint, on httpx: deadlines, retries, a circuit breaker and tokens."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import tenacity

from kopt.core.reason import Reason
from kopt.serving.client.resilience import CircuitBreaker, RetryBudget
from kopt.serving.client.tokens import TokenError, token_from
from kopt.serving.contract.common import DEADLINE_HEADER, AnswerError

DEADLINE_S = 1.0
_SERVER_SHARE = 0.8
"""Share of the remaining time that the server is given, so that its own fallback still arrives in time."""
_LARGEST_ANSWER_BYTES = 64 << 20


class RequestRefused(ValueError):
    """The endpoint refused the request (4xx); the message is the problem document's detail with the fields."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class EndpointFailure(RuntimeError):
    """No usable answer within the deadline; ``reason`` says why and ``retry_after_s`` when to try again."""

    def __init__(self, code: str, message: str, retry_after_s: float | None = None, *, retry: bool = True) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)
        self.retry_after_s, self.retry = retry_after_s, retry


class Transport:
    """JSON documents to and from an endpoint; the arguments are those of ``AsyncPredictionClient``."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = DEADLINE_S,
        token: Callable[[], str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
        longest_pause_s: float = 30.0,
    ) -> None:
        self._deadline_s, self.clock = deadline_s, clock
        self._token = token_from(os.environ) if token is None else token
        self._breaker, self._budget = CircuitBreaker(clock, longest_s=longest_pause_s), RetryBudget()
        self.answered = self.failed = 0
        """Answers since the process began: usable ones, and errors, broken ones or those that were not in time. An
        endpoint that is not there, busy or still without a model has failed at no answer."""
        # No proxies from the environment: predictions do not leave the machine by accident.
        self._http = httpx.AsyncClient(base_url=url, transport=transport, trust_env=False, follow_redirects=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, deadline_s: float | None) -> dict[str, Any]:
        """Raises EndpointFailure, RequestRefused or AnswerError."""
        return await self._call("GET", path, deadline_s)

    async def send(
        self, method: str, path: str, document: Mapping[str, Any], deadline_s: float | None
    ) -> dict[str, Any]:
        """Raises as ``get`` does, and ValueError or TypeError for what JSON cannot hold."""
        return await self._call(method, path, deadline_s, json.dumps(document, separators=(",", ":")).encode())

    async def _call(self, method: str, path: str, deadline_s: float | None, content: bytes = b"") -> dict[str, Any]:
        """The JSON document of an answer, tried again while deadline, budget and breaker allow."""
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        end_s = self.clock() + limit_s
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._may_retry),
            wait=_pause,
            stop=_stop_before(end_s, self.clock),
            reraise=True,
        )
        last: EndpointFailure | None = None

        async def once() -> dict[str, Any]:
            nonlocal last
            try:
                return await self._once(method, path, content, end_s)
            except EndpointFailure as failure:
                last = failure
                raise

        try:
            async with asyncio.timeout(max(limit_s, 0.0)):
                document: dict[str, Any] = await attempts(once)
                return document
        except TimeoutError:
            self._failed(answers=last is None or last.reason.code != "ENDPOINT_UNREACHABLE")
            raise last or EndpointFailure("DEADLINE", f"No answer within {limit_s * 1000:g} ms.") from None

    def _may_retry(self, error: BaseException) -> bool:
        return isinstance(error, EndpointFailure) and error.retry and self._budget.allows

    def _failed(self, *, answers: bool = True) -> None:
        self.failed += answers
        self._breaker.failed()
        self._budget.failed()

    async def _once(self, method: str, path: str, content: bytes, end_s: float) -> dict[str, Any]:
        if not self._breaker.allows():
            raise EndpointFailure("CIRCUIT_OPEN", "The endpoint failed repeatedly; it is left alone.", retry=False)
        remaining_s = max(end_s - self.clock(), 0.001)
        headers = {DEADLINE_HEADER: f"{remaining_s * 1000 * _SERVER_SHARE:.0f}", "content-type": "application/json"}
        headers |= self._authorization()
        try:
            reply = await self._http.request(method, path, content=content, headers=headers, timeout=remaining_s)
        except httpx.TimeoutException:
            # The whole remaining time was spent.
            self._failed()
            raise EndpointFailure("DEADLINE", f"No answer within {remaining_s * 1000:.0f} ms.", retry=False) from None
        except httpx.HTTPError as error:
            self._failed(answers=False)
            raise EndpointFailure("ENDPOINT_UNREACHABLE", f"No connection: {type(error).__name__}.") from error
        return self._read(reply)

    def _authorization(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"authorization": f"Bearer {self._token()}"}
        except TokenError as error:
            raise EndpointFailure("NO_TOKEN", f"{error}.", retry=False) from None

    def _read(self, reply: httpx.Response) -> dict[str, Any]:
        status = reply.status_code
        is_problem = reply.headers.get("content-type", "").startswith("application/problem+json")
        if status == 429:
            # An overloaded endpoint is alive: no failure for the circuit breaker, but no quick retry either.
            self._budget.failed()
            raise EndpointFailure("OVERLOADED", "The endpoint is overloaded.", _retry_after_s(reply))
        if 400 <= status < 500 and is_problem:
            self._breaker.succeeded()
            raise RequestRefused(status, _detail(reply))
        if status == 503 and "json" in reply.headers.get("content-type", ""):
            # It is alive and reports that it has no model yet: no failure for the circuit breaker.
            self._breaker.succeeded()
            raise EndpointFailure("NOT_READY", _detail(reply), _retry_after_s(reply))
        if status != 200 or len(reply.content) > _LARGEST_ANSWER_BYTES:
            self._failed()
            raise EndpointFailure("ENDPOINT_ERROR", f"The endpoint answered with status {status}.")
        return self._document(reply)

    def _document(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            document = reply.json()
        except (ValueError, RecursionError) as error:
            self._failed()
            raise EndpointFailure("ENDPOINT_ERROR", "The endpoint's answer is not JSON.") from error
        if not isinstance(document, dict):
            raise AnswerError("the endpoint's answer is not an object")
        self._breaker.succeeded()
        self._budget.succeeded()
        self.answered += 1
        return document


def _pause(state: tenacity.RetryCallState) -> float:
    """Full jitter from 10 ms on, or what the endpoint asked for."""
    failure = state.outcome.exception() if state.outcome is not None else None
    retry_after_s = failure.retry_after_s if isinstance(failure, EndpointFailure) else None
    return (
        retry_after_s if retry_after_s is not None else float(tenacity.wait_random_exponential(0.02, 0.5)(state)) + 0.01
    )


def _stop_before(end_s: float, clock: Callable[[], float]) -> Callable[[tenacity.RetryCallState], bool]:
    """Stop when the next attempt could not start before the deadline."""
    return lambda state: clock() + (state.upcoming_sleep or 0.0) >= end_s


def _retry_after_s(reply: httpx.Response) -> float | None:
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _detail(reply: httpx.Response) -> str:
    try:
        problem = reply.json()
        fields = "; ".join(f"{error['field']}: {error['message']}" for error in problem.get("errors", [])[:5])
        return f"{problem['detail']}" + (f" ({fields})" if fields else "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return reply.text[:200]
