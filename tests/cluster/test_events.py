"""Events that tell each thing once and never flood the API server."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from controlplane.processes import until

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import EVENTS, NODES, PODS, Object
from kopt.cluster.runtime.events import WARNING, EventRecorder, EventSettings

pytestmark = pytest.mark.cluster


@contextlib.asynccontextmanager
async def writing(recorder: EventRecorder) -> AsyncIterator[None]:
    """What is recorded inside is written afterwards."""
    task = asyncio.create_task(recorder.run())
    yield
    await written(recorder)
    task.cancel()


async def written(recorder: EventRecorder) -> None:
    await until(lambda: not recorder._work.is_set(), what="every event is written")


async def events_on(kube: Kube, namespace: str, name: str) -> list[Object]:
    found = await kube.list(EVENTS, namespace)
    return [event for event in found.items if event["regarding"]["name"] == name]


async def test_an_event_stands_on_its_object(kube: Kube, namespace: str) -> None:
    recorder = EventRecorder(kube, "kaiwo.ai/extender", "extender-0")
    async with writing(recorder):
        recorder.record(
            PODS.reference(namespace, "trainer", "uid-1"),
            "Chosen",
            "Binding",
            "node-7 leaves 3 GPUs whole, " * 100,
            kind=WARNING,
            related=NODES.reference("", "node-7"),
        )
    (event,) = await events_on(kube, namespace, "trainer")
    assert (event["reason"], event["action"], event["type"]) == ("Chosen", "Binding", "Warning")
    assert event["reportingController"] == "kaiwo.ai/extender"
    assert event["related"]["name"] == "node-7"
    assert event["note"].endswith("…")
    assert recorder.dropped == 0


async def test_what_is_said_again_becomes_a_series(kube: Kube, namespace: str) -> None:
    now_s = 0.0
    recorder = EventRecorder(kube, "kaiwo.ai/extender", "extender-0", clock=lambda: now_s)
    async with writing(recorder):
        for _ in range(4):
            recorder.record(PODS.reference(namespace, "trainer"), "NoRoom", "Filtering", "no node has 8 GPUs")
        await written(recorder)
        now_s = 61.0
        recorder.record(PODS.reference(namespace, "trainer"), "NoRoom", "Filtering", "no node has 8 GPUs")
    (event,) = await events_on(kube, namespace, "trainer")
    assert event["series"]["count"] == 5


async def test_a_flood_on_one_object_is_cut_short(kube: Kube, namespace: str) -> None:
    recorder = EventRecorder(kube, "kaiwo.ai/extender", "extender-0", EventSettings(object_burst=5))
    async with writing(recorder):
        for number in range(200):
            recorder.record(PODS.reference(namespace, "noisy"), "NoRoom", "Filtering", f"attempt {number}")
        recorder.record(PODS.reference(namespace, "quiet"), "NoRoom", "Filtering", "once")
    assert len(await events_on(kube, namespace, "noisy")) == 5
    assert len(await events_on(kube, namespace, "quiet")) == 1
    assert recorder.dropped == 195


async def test_the_api_server_is_asked_so_often_and_no_more(kube: Kube, namespace: str) -> None:
    settings = EventSettings(per_second=50, burst=5, queued=100)
    recorder = EventRecorder(kube, "kaiwo.ai/extender", "extender-0", settings)
    began_s = time.monotonic()
    async with writing(recorder):
        for number in range(150):
            recorder.record(PODS.reference(namespace, f"pod-{number}"), "Chosen", "Binding", "there is room")
    assert time.monotonic() - began_s > (100 - 5) / 50 - 0.1
    assert len((await kube.list(EVENTS, namespace)).items) == 100
    assert recorder.dropped == 50


async def test_an_event_that_cannot_be_written_harms_nobody(control_plane: Any, kube: Kube, namespace: str) -> None:
    recorder = EventRecorder(kube, "kaiwo.ai/extender", "extender-0")
    async with writing(recorder):
        recorder.record(PODS.reference("no-such-namespace", "trainer"), "Chosen", "Binding", "there is room")
        recorder.record(PODS.reference(namespace, "trainer"), "Chosen", "Binding", "there is room")
        recorder.record(NODES.reference("", f"node-of-{namespace}"), "Chosen", "Binding", "in the namespace default")
    assert len(await events_on(kube, namespace, "trainer")) == 1
    assert len(await events_on(kube, "default", f"node-of-{namespace}")) == 1
