"""What the controller keeps of pairs reaches the endpoint as it is served, calibrates it, and is shown."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from bandwidth_nodes import cube_mesh
from pairwise.test_sending import Informed

from kopt.agents.topology.documents import spec_of
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_bandwidth import NodeBandwidth, status_of
from kopt.controllers.pairwise.endpoint_upload import Sender
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.serving.client.client import AsyncPredictionClient
from kopt.serving.contract.bandwidth.answers import BandwidthQuery
from kopt.serving.endpoint.app import create_app
from tests.serving.conftest import URL, MemorySource
from tests.serving.test_bandwidth_pairs import built


def held(node: str, partners: Sequence[str], slow: str) -> Object:
    """What the controller writes: a pair is in the object of its first node."""
    found = []
    for other in partners:
        times = 10.0 if other == slow else 2.0
        points = tuple(MeasuredPoint(size, times * (20.0 + size / 200e3)) for size in (1 << 10, 1 << 20, 1 << 30))
        health = Health.SLOW if other == slow else Health.HEALTHY
        found.append(
            MeasuredPair(
                (node, other),
                8,
                Collective.ALL_REDUCE,
                time.time() - 60,
                points,
                20.0 * times,
                200.0 / times,
                "nccl 2.27.3",
                health,
            )
        )
    return {"metadata": {"name": node}, "status": status_of(NodeBandwidth(node, pairs=tuple(found)))}


async def test_pairs_go_from_the_objects_through_the_endpoint_into_answers(
    source: MemorySource, tmp_path: Path
) -> None:
    endpoint = built(source, tmp_path, load_bandwidth("shipped"))
    bandwidths = Informed({("", "a"): held("a", list("bcde"), slow="e")})
    written = spec_of(cube_mesh())
    topologies = Informed({("", name): {"metadata": {"name": name}, "spec": written} for name in "abcde"})
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with AsyncPredictionClient(URL, transport=transport, deadline_s=30.0) as client:
        sender = asyncio.create_task(Sender("east", client.tell_pairs, bandwidths, topologies).run())  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(60):
                while True:
                    await asyncio.sleep(0.05)
                    shown = await client.pairs("east") if "east" in (await client.pairs()).clusters else None
                    if shown is not None and all(one.machine for one in shown.nodes) and len(shown.pairs) == 4:
                        break
            sets = [tuple(range(8))]
            plain = await client.bandwidth(BandwidthQuery(cube_mesh(), sets, nodes=2))
            told = await client.bandwidth(BandwidthQuery(cube_mesh(), sets, nodes=2, cluster="east"))
        finally:
            sender.cancel()
    endpoint.stop()
    assert {one.pair.nodes: one.pair.health for one in shown.pairs}["a", "e"] is Health.SLOW
    assert not plain.reasons
    assert [one.code for one in told.reasons] == ["CALIBRATED"]
    assert told.reasons[0].numbers["pairs"] == 3
