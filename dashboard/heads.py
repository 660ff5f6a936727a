"""Clients of the pages that never end, or never begin, a request: uvicorn itself waits for these for ever."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""From the connection, or from the first byte of a later request, to the end of its head."""


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol over llhttp, with a deadline for heads."""

    head_s = HEAD_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._deadline is None:
            self._wait()

    def on_headers_complete(self) -> None:
        self._settle()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(self.head_s, self._end)

    def _settle(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
