"""An endpoint that takes lines as ``POST /v1/checkpoint`` does and keeps what it got, with faults to order."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.client.transport import EndpointFailure
from kopt.serving.contract.checkpoint_schemas import CHECKPOINT_REQUEST

Object = dict[str, Any]


class Endpoint:
    """``lines`` is what counted, in the order of its numbers; ``repeated`` what came again and was ignored.

    ``status`` answers everything with a refusal, ``gate`` stops it from answering at all while it is cleared.
    """

    def __init__(self) -> None:
        self.taken: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self.next: dict[tuple[str, str], int] = {}
        self.at: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        self.requests: list[Object] = []
        self.repeated = self.conflicting = 0
        self.status = 200
        self.headers: dict[str, str] = {}
        self.gate: asyncio.Event | None = None
        self.lose_answers = False
        self.refuse: Callable[[str], bool] = lambda text: False
        self.fallbacks = 0
        self.says: Object = {"state": "TRAIN", "safe": False}

    def lines(self, job: str, source: str) -> list[str]:
        found = self.taken[job, source]
        return [found[number] for number in sorted(found)]

    def numbers(self, job: str, source: str) -> list[int]:
        return sorted(self.taken[job, source])

    def take(self, request: Mapping[str, Any]) -> Object:
        job, source = request["job"], request.get("source", "")
        first = request.get("first", self.next.get((job, source), 1))
        for number, line in enumerate(request["lines"], first):
            text = line if isinstance(line, str) else line["text"]
            before = self.taken[job, source].get(number)
            if number < self.next.get((job, source), 1):
                self.repeated += 1
                self.conflicting += before is not None and before != text
                continue
            self.taken[job, source][number] = text
            if not isinstance(line, str):
                self.at[job, source][number] = line["at"]
            self.next[job, source] = number + 1
        known = {name: number for (of, name), number in self.next.items() if of == job}
        return {
            "schema": "kopt/v1",
            "job": job,
            "next": known,
            "fallback": False,
            "model": {"name": "checkpoint", "version": "3", "digest": "d"},
            **self.says,
        }

    async def __call__(
        self, scope: Object, receive: Callable[[], Awaitable[Object]], send: Callable[[Object], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if self.gate is not None:
            await self.gate.wait()
        status, answer = self._answer(scope["path"], body)
        headers = {"content-type": "application/json" if status == 200 else "application/problem+json", **self.headers}
        encoded = [(name.encode(), text.encode()) for name, text in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, path: str, body: bytes) -> tuple[int, Object]:
        if path != "/v1/checkpoint":
            return 404, {"detail": "no such path"}
        if self.status != 200:
            return self.status, {"detail": "ordered by the test"}
        # As strict as the endpoint itself.
        CHECKPOINT_REQUEST.validate_json(body)
        request = json.loads(body)
        if self.fallbacks:
            self.fallbacks -= 1
            return 200, {"state": "UNKNOWN", "safe": False, "next": {}, "fallback": True, "reason": "the model failed"}
        texts = [one if isinstance(one, str) else one["text"] for one in request["lines"]]
        if any(map(self.refuse, texts)):
            return 422, {"detail": "a line that is refused"}
        self.requests.append(request)
        answer = self.take(request)
        return (500, {"detail": "lost"}) if self.lose_answers else (200, answer)

    def client(self, **options: Any) -> AsyncPredictionClient:
        """A client of this endpoint without a network."""
        options = {"deadline_s": 5.0, "longest_pause_s": 0.05} | options
        return AsyncPredictionClient("http://endpoint", transport=httpx.ASGITransport(self), **options)


class Down:
    """A post function that fails as often as it is told to, then passes on."""

    def __init__(self, endpoint: Endpoint, failures: int = 0, retry_after_s: float | None = None) -> None:
        self.endpoint, self.failures, self.retry_after_s = endpoint, failures, retry_after_s
        self.calls = 0

    async def __call__(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.calls += 1
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise EndpointFailure("ENDPOINT_UNREACHABLE", "ordered by the test", self.retry_after_s)
        return self.endpoint.take(request)
