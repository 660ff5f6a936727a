"""A collector of traces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextlib.asynccontextmanager
async def collector(delay_s: float = 0.0) -> AsyncIterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Takes OTLP over HTTP as a collector does."""
    received: list[ExportTraceServiceRequest] = []

    async def take(request: web.Request) -> web.Response:
        batch = ExportTraceServiceRequest()
        batch.ParseFromString(await request.read())
        received.append(batch)
        await asyncio.sleep(delay_s)
        return web.Response()

    application = web.Application()
    application.router.add_post("/v1/traces", take)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", received
    await runner.cleanup()
