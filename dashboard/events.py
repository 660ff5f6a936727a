"""Says to an open page that what it shows has changed: server-sent events without content, so that nothing has to be
restricted. A page that hears nothing asks again by itself as before."""

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response, StreamingResponse

from kopt.dashboard.data.feed import AnyFeed, Source
from kopt.dashboard.problem import problem_document

MOST_STREAMS = 200
"""Open at once; further pages ask every now and then."""
STREAM_S, ALIVE_S = 300.0, 15.0
"""After so long the browser connects anew, which looks at the session again; and how often a silent line is used."""
MEDIA_TYPE = "text/event-stream"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class ChangeStreams:
    """Of one process."""

    def __init__(self, most: int = MOST_STREAMS, stream_s: float = STREAM_S) -> None:
        self._most, self._stream_s, self._open = most, stream_s, 0

    def of(self, source: Source, feed: AnyFeed) -> Response:
        """An answer that goes on while somebody listens."""
        if self._open >= self._most:
            return problem_document(503, "Too many pages are open", "This one asks again by itself.")
        return StreamingResponse(self._lines(source, feed), media_type=MEDIA_TYPE, headers=_HEADERS)

    async def _lines(self, source: Source, feed: AnyFeed) -> AsyncIterator[str]:
        loop, change = asyncio.get_running_loop(), 0
        end_s = loop.time() + self._stream_s
        self._open += 1
        try:
            yield "retry: 5000\n\n"
            while loop.time() < end_s:
                try:
                    async with asyncio.timeout(ALIVE_S):
                        change = await source.next_change(feed, change)
                except TimeoutError:
                    yield ": alive\n\n"
                else:
                    yield "data: changed\n\n"
        finally:
            self._open -= 1
