"""What every agent's process does: it logs one JSON object per line, and ends with a signal."""

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any


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
        running = [group.create_task(one) for one in work]
        try:
            yield
        finally:
            for one in running:
                one.cancel()


@contextlib.contextmanager
def metrics_server(collect: Callable[[], Iterator[Any]], host: str, port: int | None) -> Iterator[None]:
    """The metrics that ``collect`` yields, on ``host:port`` while the block runs; nothing where ``port`` is None."""
    if port is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class Counts(Collector):
        def collect(self) -> Iterator[Any]:
            return collect()

    registry = CollectorRegistry()
    registry.register(Counts())
    server, thread = start_http_server(port, host, registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def log_to_stderr(level: int = logging.INFO) -> None:
    """One JSON object per line on standard error, for whatever collects them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # One line for each request would be more than what is done.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"at_s": round(record.created, 3), "level": record.levelname, "logger": record.name,
                "message": record.getMessage()}  # fmt: skip
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
