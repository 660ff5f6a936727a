"""The telemetry agents of many nodes in one process: the agent's own code, over made-up drivers and kubelets.

``http://ADDRESS/NODE/metrics`` is what the agent of a node shows. What drivers and kubelets say is what ``holders``
says of the node, by GPU. Agents of ``LARGE`` clusters have one thread here, and not a machine each: a node of which
drivers and kubelet say what they said before is read again only before that is too old for the agent. All others are
read as the agent reads, every time.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from kopt.agents.telemetry.process import ProcessSettings, Telemetry
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.formats.gpu_metrics.device_reading import DeviceReading

MODEL, GPU = "NVIDIA H100 80GB HBM3", "nvidia.com/gpu"
_GIB = float(1 << 30)
LARGE = 200
"""From so many nodes on one thread cannot read them all every time."""


@dataclass(frozen=True)
class Holding:
    """A pod that has a GPU, and the share of the time in which its kernels run."""

    namespace: str
    pod: str
    busy: float


@dataclass
class Node:
    """What a node's driver and kubelet say. One that is ``lost`` does not answer."""

    name: str
    gpus: int
    holders: Callable[[], Mapping[int, Holding]]
    xids: dict[int, dict[str, float]] = field(default_factory=dict)
    lost: bool = False

    def uuid(self, gpu: int) -> str:
        return f"GPU-{self.name}-{gpu}"

    @property
    def observed(self) -> tuple[object, ...]:
        """All that driver and kubelet say: what is equal reads the same."""
        xids = [(gpu, code) for gpu, codes in self.xids.items() for code in codes.items()]
        return (*self.holders().items(), *xids)

    def readings(self) -> tuple[DeviceReading, ...]:
        holders = self.holders()
        return tuple(self._reading(gpu, holders.get(gpu)) for gpu in range(self.gpus))

    def _reading(self, gpu: int, holding: Holding | None) -> DeviceReading:
        busy = 0.0 if holding is None else holding.busy
        values = {
            "memory_used_bytes": (60 if holding else 1) * _GIB,
            "memory_total_bytes": 80 * _GIB,
            "busy_ratio": busy,
            "power_watts": 90 + 600 * busy,
            "temperature_celsius": 35 + 40 * busy,
        }
        xids = self.xids.get(gpu, {})
        labelled = {"xid_errors_total": xids} if xids else {}
        return DeviceReading(str(gpu), self.uuid(gpu), MODEL, values=values, labelled=labelled)

    # What the agent asks a kubelet.
    async def allocations(self) -> tuple[DeviceAllocation, ...]:
        by_pod: dict[tuple[str, str], list[str]] = {}
        for gpu, holding in self.holders().items():
            by_pod.setdefault((holding.namespace, holding.pod), []).append(self.uuid(gpu))
        return tuple(DeviceAllocation(*pod, GPU, tuple(devices)) for pod, devices in by_pod.items())

    async def allocatable(self) -> dict[str, tuple[str, ...]]:
        return {GPU: tuple(map(self.uuid, range(self.gpus)))}


class _Driver:
    """A source of readings, as NVML is one."""

    name = "nvml"

    def __init__(self, node: Node) -> None:
        self._node = node

    async def read(self) -> tuple[DeviceReading, ...]:
        return self._node.readings()

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        return ()

    async def close(self) -> None:
        """Nothing is held."""


class Agents:
    """Reads all nodes every ``interval_s`` in a thread until ``stop``; of a large cluster those that have changed."""

    def __init__(self, nodes: Sequence[Node], port: int, interval_s: float) -> None:
        self.address, self._port, self._interval_s = f"127.0.0.1:{port}", port, interval_s
        self.only_changed = len(nodes) >= LARGE
        self.slowest_s = 0.0
        """Of a round after the first."""
        self._nodes = {node.name: (node, self._agent(node)) for node in nodes}
        self._read: dict[str, tuple[tuple[object, ...], float]] = {}
        self._ending, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        if not self._ready.wait(120 + 0.2 * len(nodes)):
            raise AssertionError("the agents do not start")

    @property
    def slowest(self) -> str:
        """What the longest round was, and of what."""
        return f"{'a round over changed nodes' if self.only_changed else 'all agents read'} in {self.slowest_s:.1f} s"

    def _agent(self, node: Node) -> Telemetry:
        sources = lambda: [_Driver(node)]  # noqa: E731
        return Telemetry(ProcessSettings(node.name, sources, interval_s=self._interval_s))

    async def _run(self) -> None:
        application = web.Application()
        application.router.add_get("/{node}/metrics", self._metrics)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port).start()
        while not self._ending.is_set():
            begin_s = time.monotonic()
            for node, agent in self._nodes.values():
                await self._read_if_changed(node, agent)
            spent_s = time.monotonic() - begin_s
            if self._ready.is_set():
                self.slowest_s = max(self.slowest_s, spent_s)
            self._ready.set()
            await asyncio.sleep(max(0.05, self._interval_s - spent_s))
        await runner.cleanup()

    async def _read_if_changed(self, node: Node, agent: Telemetry) -> None:
        observed, (before, until_s) = node.observed, self._read.get(node.name, ((None,), 0.0))
        now_s = time.monotonic()
        if not self.only_changed or observed != before or now_s >= until_s:
            await agent.read()
            await agent.ask(node, is_all=True)  # type: ignore[arg-type]
            agent.make()
            # Not all of them become too old at once.
            self._read[node.name] = observed, now_s + random.uniform(0.4, 0.8) * ProcessSettings.stale_s
        await asyncio.sleep(0)

    async def _metrics(self, request: web.Request) -> web.Response:
        node, agent = self._nodes[request.match_info["node"]]
        if node.lost:
            raise web.HTTPServiceUnavailable
        return web.Response(body=agent.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(30)
