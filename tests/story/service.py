"""Two replicas of the endpoint behind one address, as behind a Service, with PostgreSQL and Redis that both share.

Each request goes to the next replica, over a connection of its own: no client stays with one. What a replica does
not answer is answered with 502 and not sent again: that is for clients of ours to do.
"""

import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from asgi_server import served
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from postgres_server import PostgresServer
from shipped_models import shipped_endpoint

from kopt.core.settings import Settings
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.endpoint.app import Endpoint
from tests.features.conftest import RunningRedis

CHECKPOINT = "/v1/checkpoint"
SAME = ("state", "safe", "step", "last_durable_step", "lines")
"""What the twin answers to the same lines, whoever read those before; ages and confidences are of the moment."""
_HOP = (b"host", b"content-length", b"connection", b"transfer-encoding")
_WITHIN_S = 60.0
Answer = Callable[..., Awaitable[None]]


@dataclass(frozen=True)
class Exchange:
    """Lines that an agent sent, and what it was answered by which replica."""

    seen_s: float
    replica: int
    body: bytes
    answer: dict[str, Any]

    @property
    def at_s(self) -> float:
        """What the replica's clock said: whether a save is due soon, and so what is safe, goes by it."""
        written_s, since_s = self.answer["last_durable_at"], self.answer["seconds_since_durable"]
        return self.seen_s if written_s is None or since_s is None else float(written_s + since_s)


class Service:
    """``url`` is the address of all replicas; ``exchanges`` are the questions about checkpoints with their answers."""

    def __init__(self, replicas: list[tuple[Server, str]]) -> None:
        self._replicas = dict(enumerate(replicas))
        self._next = 0
        self.url = ""
        self.exchanges: list[Exchange] = []

    def kill_one(self) -> int:
        """The one that answered an agent last, without a word; none comes back."""
        number = self.exchanges[-1].replica
        self.kill(number)
        return number

    def freeze(self, number: int) -> None:
        """It still takes requests and answers none, as on a node that is lost."""
        self._replicas[number][0].signal(signal.SIGSTOP)

    def kill(self, number: int) -> None:
        self._replicas[number][0].kill()

    def ready(self) -> bool:
        """Whether all answer."""
        return all(httpx.get(f"{url}/healthz", trust_env=False).is_success for _, url in self._replicas.values())

    async def __call__(self, scope: dict[str, Any], receive: Answer, send: Answer) -> None:
        if scope["type"] != "http":
            return
        status, headers, body = await self._passed_on(scope, await _body_of(receive))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _passed_on(self, scope: dict[str, Any], body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        path = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        number = self._turn()
        async with httpx.AsyncClient(trust_env=False, timeout=_WITHIN_S) as client:
            try:
                url = f"{self._replicas[number][1]}{path.decode()}"
                answer = await client.request(scope["method"], url, headers=headers, content=body)
            except httpx.TransportError as error:
                return 502, [], str(error).encode()
        if scope["method"] == "POST" and scope["path"] == CHECKPOINT and answer.status_code == 200:
            self.exchanges.append(Exchange(time.time(), number, body, answer.json()))
        kept = [(name, value) for name, value in answer.headers.raw if name.lower() not in (*_HOP, b"content-encoding")]
        return answer.status_code, kept, answer.content

    def _turn(self) -> int:
        """Of those whose process is there: a Service leads to no other once the kubelet has seen it end."""
        alive = [number for number, (server, _) in self._replicas.items() if server.alive]
        self._next += 1
        return alive[self._next % len(alive)]


async def _body_of(receive: Answer) -> bytes:
    parts, more = [], True
    while more:
        message: Any = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


@contextmanager
def two_replicas(plane: ControlPlane, folder: Path) -> Iterator[Service]:
    """Processes of their own, each with a home of its own."""
    (folder / "redis").mkdir(parents=True)
    with ExitStack() as parts:
        postgres = PostgresServer()
        parts.callback(postgres.remove)
        redis = RunningRedis(folder / "redis")
        parts.callback(redis.stop)
        shared = {"KOPT_DATABASE_URL": postgres.new_database(), "KOPT_REDIS_URL": f"redis://127.0.0.1:{redis.port}/0"}
        replicas = []
        for number in range(2):
            port = free_port()
            command = [sys.executable, "-P", str(Path(__file__).with_name("endpoint.py"))]
            server = plane.start_server(
                f"endpoint-{number}", [*command, str(folder / f"home-{number}"), str(port)], shared
            )
            parts.callback(server.kill)
            replicas.append((server, f"http://127.0.0.1:{port}"))
        service = Service(replicas)
        wait_for(service.ready, 180, what="both replicas of the endpoint answer")
        service.url = parts.enter_context(served(service))
        yield service


def answered_by_one_process(exchanges: list[Exchange], folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What a single process answers to the same requests at the same times, beside what was answered."""
    clock = [0.0]

    def prepare(endpoint: Endpoint) -> None:
        endpoint.service(CheckpointService)._clock = lambda: clock[0]

    pairs = []
    with (
        shipped_endpoint(folder / "alone", Settings(home=folder / "alone"), prepare=prepare) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=_WITHIN_S) as client,
    ):
        for exchange in exchanges:
            clock[0] = exchange.at_s
            body = json.loads(exchange.body)
            # Time enough: a busy machine must not turn an answer into a fallback.
            body.pop("deadline_ms", None)
            answer = client.post(CHECKPOINT, json=body, headers={DEADLINE_HEADER: "60000"})
            answer.raise_for_status()
            pairs.append((_compared(answer.json()), _compared(exchange.answer)))
    return pairs


def _compared(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in ("job", *SAME)}
