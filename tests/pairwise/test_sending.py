"""The endpoint is told of everything measured, whatever it does not know yet and however often it is away."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_bandwidth import NodeBandwidth, status_of
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.controllers.pairwise.endpoint_upload import Sender
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.hardware.pairwise import MeasuredPair, MeasuredPoint
from kopt.serving.client.transport import EndpointFailure, RequestRefused
from kopt.serving.contract.bandwidth.pairwise_answers import PairsKept
from kopt.serving.contract.common import ModelOut


class Informed:
    """An informer without a cluster."""

    def __init__(self, objects: dict[tuple[str, str], Object] | None = None) -> None:
        self.objects = objects or {}
        self._handlers: list[Callable[[Change[Object]], None]] = []

    def subscribe(self, handler: Callable[[Change[Object]], None]) -> Callable[[], None]:
        self._handlers.append(handler)
        return lambda: self._handlers.remove(handler)

    def put(self, document: Object) -> None:
        key = ("", document["metadata"]["name"])
        old = self.objects.get(key)
        self.objects[key] = document
        for handler in self._handlers:
            handler(Change(ChangeKind.UPDATED if old else ChangeKind.ADDED, key, old, document))


class Endpoint:
    """Knows no node until it is told of it; ``trouble`` is raised first, one after the other."""

    def __init__(self, trouble: Sequence[Exception] = ()) -> None:
        self.kept: dict[Any, MeasuredPair] = {}
        self.known: set[str] = set()
        self.calls: list[int] = []
        self._trouble = list(trouble)

    async def __call__(
        self,
        cluster: str,
        pairs: Sequence[MeasuredPair],
        topologies: Mapping[str, NodeTopology] | None = None,
        *,
        domains: Mapping[str, Sequence[str]] | None = None,
    ) -> PairsKept:
        self.calls.append(len(pairs))
        if self._trouble:
            raise self._trouble.pop(0)
        self.known |= set(topologies or {})
        self.kept |= {one.nodes: one for one in pairs}
        unknown = {name for one in pairs for name in one.nodes} - self.known
        model = ModelOut("bandwidth", "1", "")
        return PairsKept(cluster=cluster, kept=len(pairs), unknown_nodes=tuple(sorted(unknown)), model=model)


def held(node: str, partners: Sequence[str], at_s: float = 1.8e9) -> Object:
    points = (MeasuredPoint(8, 20.0), MeasuredPoint(1 << 20, 50.0))
    pairs = [MeasuredPair((node, one), 8, Collective.ALL_REDUCE, at_s, points, 20.0, 90.0) for one in partners]
    return {"metadata": {"name": node}, "status": status_of(NodeBandwidth(node, pairs=tuple(pairs)))}


def described(node: str) -> Object:
    return {"metadata": {"name": node}, "spec": {"gpus": [{"index": 0, "name": "MI300X"}]}}


async def sent(endpoint: Endpoint, until: Callable[[], bool], bandwidths: Informed, topologies: Informed) -> None:
    sender = Sender("north", endpoint, bandwidths, topologies, first_pause_s=0.01)  # type: ignore[arg-type]
    task = asyncio.create_task(sender.run())
    async with asyncio.timeout(90):
        while not until():
            assert not task.done()
            await asyncio.sleep(0.005)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_everything_is_told_at_the_start_in_parts_and_with_the_topologies_that_are_wanted() -> None:
    names = [f"node-{n:04}" for n in range(600)]
    bandwidths = Informed()
    bandwidths.put(held(names[0], names[1:401]))
    bandwidths.put(held(names[1], names[401:]))
    topologies = Informed({("", name): described(name) for name in names[:3]})
    endpoint = Endpoint()
    await sent(endpoint, lambda: len(endpoint.kept) == 599 and set(names[:3]) <= endpoint.known, bandwidths, topologies)
    assert max(endpoint.calls) == 500


async def test_it_is_told_of_what_comes_and_of_topologies_that_come_later() -> None:
    bandwidths, topologies, endpoint = Informed(), Informed(), Endpoint()

    def progress() -> bool:
        if not endpoint.kept:
            bandwidths.put(held("a", ["b"]))
        elif not endpoint.known:
            topologies.put(described("a"))
        elif len(endpoint.kept) == 1:
            bandwidths.put(held("a", ["b", "c"]))
        return len(endpoint.kept) == 2

    await sent(endpoint, progress, bandwidths, topologies)
    assert endpoint.known == {"a"}


async def test_an_endpoint_that_is_away_gets_it_later_and_a_refusal_stops_nothing() -> None:
    bandwidths = Informed({("", "a"): held("a", ["b"])})
    away = EndpointFailure("ENDPOINT_DOWN", "away", 0.01)
    endpoint = Endpoint([away, away])
    await sent(endpoint, lambda: len(endpoint.kept) == 1, bandwidths, Informed())
    assert endpoint.calls[:3] == [1, 1, 1]
    strict = Endpoint([RequestRefused(422, "no")])

    def progress() -> bool:
        if strict.calls and not strict.kept:
            bandwidths.put(held("a", ["b"], 1.9e9 + len(strict.calls)))
        return bool(strict.kept)

    await sent(strict, progress, bandwidths, Informed())
