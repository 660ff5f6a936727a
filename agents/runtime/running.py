"""What every agent's process does: it logs one JSON object per line, and ends with a signal."""

import asyncio
import contextlib
import functools
import gzip
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_GZIP_LEVEL = 1
"""The text repeats itself so much that higher ones save little, and take four times as long."""
_MOST_CONNECTIONS = 64
_MOST_BUFFERED_BYTES = 4 << 20


def on_signals(event: asyncio.Event, *numbers: signal.Signals) -> asyncio.Event:
    """``event``, which these signals set."""
    for number in numbers:
        # Outside of the main thread there are no signals to have.
        with contextlib.suppress(RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def end_signals(stop: asyncio.Event | None = None) -> asyncio.Event:
    """``stop``, or a new event, that SIGTERM and SIGINT set."""
    return on_signals(stop or asyncio.Event(), signal.SIGTERM, signal.SIGINT)


@contextlib.asynccontextmanager
async def beside(work: Sequence[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """The coroutines run beside the block, and end with it; what breaks one breaks the block."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(item) for item in work]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


@contextlib.asynccontextmanager
async def metrics_server(collect: Callable[[], Iterator[Any]], host: str, port: int | None) -> AsyncIterator[None]:
    """The metrics that ``collect`` yields, on ``host:port`` while the block runs; nothing where ``port`` is None.

    Raises OSError where that address is taken.
    """
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Counts(Collector):
        def collect(self) -> Iterator[Any]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Counts())
    async with text_server(lambda: generate_latest(registry), host, port):
        yield


@contextlib.asynccontextmanager
async def text_server(
    text: Callable[[], bytes], host: str, port: int | None, more: Mapping[str, Callable[[], bytes]] | None = None
) -> AsyncIterator[None]:
    """``text`` as ``/metrics`` in the same way: exposition that may be made once for many scrapes. ``more`` has texts
    by their paths beside that.

    It is compressed once, too, for callers that take gzip, as Prometheus does: a tenth of the bytes is one packet or
    two, where caller and agent would else wake each other for each part.
    """
    if port is None:
        yield
        return
    from kopt.cluster.runtime.http import SMALL_BODY_BYTES, HttpLimits, HttpServer, Reply, Request

    texts = {"/metrics": text, **(more or {})}

    @functools.lru_cache(maxsize=len(texts))
    def compressed(plain: bytes) -> Reply:
        headers = "Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
        return Reply(gzip.compress(plain, _GZIP_LEVEL, mtime=0), content_type=_METRICS, more=headers)

    def answer(request: Request) -> Reply:
        asked = texts.get(request.path)
        if asked is None:
            return Reply.text(f"there is {' and '.join(texts)}\n", 404)
        return compressed(asked()) if request.takes_gzip else Reply(asked(), content_type=_METRICS)

    # Any pod may connect: a thread for each connection would cost a node its memory.
    limits = HttpLimits(connections=_MOST_CONNECTIONS, buffered_bytes=_MOST_BUFFERED_BYTES)
    server = HttpServer(answer, SMALL_BODY_BYTES, limits=limits)
    await server.start(host, port)
    try:
        yield
    finally:
        await server.stop()


def log_to_stderr(level: int = logging.INFO) -> None:
    """One JSON object per line on standard error, for whatever collects them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line for each request would be more than what is done.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at_s": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
