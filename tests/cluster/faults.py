"""A TCP proxy in front of a real API server that breaks connections in the ways networks do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import yaml


@dataclass
class FaultProxy:
    """Forwards ``port`` on loopback to ``target``; ``cut``, ``stall`` and ``refuse`` hurt what goes through."""

    target: int
    port: int = 0
    accepted: int = 0
    delay_s: float = 0.0
    """Everything takes this much longer, in each direction."""
    _flows: set[asyncio.Transport] = field(default_factory=set)
    _open: asyncio.Event = field(default_factory=asyncio.Event)
    _lost: set[asyncio.Transport] = field(default_factory=set)
    _refusing: bool = False

    async def start(self) -> Self:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        self._open.set()

    def cut(self) -> None:
        """Reset every connection that is open now."""
        for transport in tuple(self._flows):
            transport.abort()

    def stall(self) -> None:
        """From now on nothing goes through, in either direction, on old and new connections; none is closed."""
        self._open.clear()

    def lose(self) -> None:
        """The connections that are open now stay open and silent for good, as behind a router that forgot them."""
        self._lost |= self._flows

    def flow(self) -> None:
        """Let through again what waits and what comes."""
        self._open.set()

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once."""
        self._refusing = refusing

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer.transport, far_writer.transport}
        self._flows |= ends
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, far_writer, writer))
                tasks.create_task(self._pump(far_reader, writer, far_writer))
        finally:
            self._flows -= ends

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if sink.transport in self._lost:
                    continue
                await self._open.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                sink.write(data)
                await sink.drain()
        await self._open.wait()
        for writer in (sink, back):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def proxied(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[FaultProxy, Path]]:
    """A proxy in front of the API server that ``kubeconfig`` names, and a kubeconfig that goes through it."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    proxy = await FaultProxy(int(cluster["server"].rpartition(":")[2])).start()
    cluster["server"] = f"https://127.0.0.1:{proxy.port}"
    through = folder / f"through-{proxy.port}.yaml"
    through.write_text(yaml.safe_dump(config))
    try:
        yield proxy, through
    finally:
        await proxy.stop()
