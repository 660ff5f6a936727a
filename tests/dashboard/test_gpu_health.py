"""What the page of GPUs says of a node's health: the evidence with its half-life, and who says what."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages_source import FixedSource

from kopt.cluster.objects.custom.node_health import HealthRecord, status_of
from kopt.cluster.workloads.node_standing import standing_of, statements_of
from kopt.controllers.overview.devices.gpu_map import GpuMapKeeper
from kopt.controllers.overview.reduced import reduced_node
from kopt.core.decision import Mode
from kopt.core.hardware.health import Entry, Grade, NodeHealth
from kopt.core.scheduling.gpu_map import GpuMap, NodeStanding
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import KUBERNETES_NODES, NODE_HEALTHS, pods_in
from kopt.dashboard.pages.gpus.health import health_line
from tests.dashboard.conftest import PAGES
from tests.dashboard.gpu_objects import gpu_map
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow
from tests.dashboard.test_gpus_page import seen_by, values

__all__ = ["browser", "open_page"]
NOW_S = 1_900_000_000.0
HOUR_S = 3600.0
NODE: dict[str, Any] = {
    "metadata": {"name": "gpu-0", "labels": {}, "annotations": {}},
    "spec": {
        "taints": [
            {"key": "kaiwo.ai/gpu-unhealthy", "value": "XID_79", "effect": "NoSchedule"},
            {"key": "team.example.com/hold", "effect": "NoExecute"},
        ]
    },
    "status": {
        "allocatable": {"nvidia.com/gpu": "8"},
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "GPUHealthy", "status": "False", "reason": "KoptHealthCondemned", "message": "GPU 3: XID 79"},
            {"type": "GpuXidError", "status": "True", "reason": "NVSentinel", "message": "XID 79 on GPU 3"},
        ],
    },
}
RULES: tuple[dict[str, Any], ...] = (
    {
        "metadata": {
            "name": "kopt-health-1",
            "labels": {"kaiwo.ai/gpu-unhealthy": "true"},
            "annotations": {"kaiwo.ai/gpu": "3"},
        },
        "spec": {
            "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "gpu-0", "device": "gpu-3"},
            "taint": {"key": "kaiwo.ai/gpu-unhealthy", "value": "XID_79", "effect": "NoSchedule"},
        },
    },
    {
        "metadata": {"name": "maintenance"},
        "spec": {"deviceSelector": {"pool": "gpu-0"}, "taint": {"key": "example.com/off", "effect": "NoExecute"}},
    },
)


def entries(at_s: float) -> list[Entry]:
    return [
        Entry("XID_79", "3", 1.2, at_s, at_s, at_s, lasts=True),
        Entry("XID_94", "2", 0.8, at_s, at_s, at_s, 3.0),
        Entry("XID_43", "5", 0.0, at_s, at_s, at_s, 7.0),
    ]


def document(at_s: float) -> dict[str, Any]:
    grades = {"3": Grade.CONDEMNED, "2": Grade.SUSPECT}
    health = NodeHealth(Grade.CONDEMNED, 0.0, grades, {"3": 1.2, "2": 0.8})
    by_code = {(entry.code, entry.gpu): entry for entry in entries(at_s)}
    record = HealthRecord("gpu-0", health, by_code, reason="GPU 3: XID 79", mode=Mode.ENFORCE, since_s=at_s)
    return {"metadata": {"name": "gpu-0"}, "status": status_of(record)}


def standing(at_s: float = NOW_S) -> NodeStanding:
    return replace(standing_of(document(at_s)), statements=statements_of(reduced_node(NODE), RULES))


def ill_map(at_s: float = NOW_S) -> GpuMap:
    current = gpu_map(3)
    nodes = {**current.nodes, "gpu-0": replace(current.nodes["gpu-0"], standing=standing(at_s))}
    return replace(current, nodes=nodes)


def test_evidence_fades_by_its_half_life_and_says_how_it_ends() -> None:
    first, second, last = health_line(standing(), NOW_S + 24 * HOUR_S).lines[:3]
    assert (first.gpu, first.weighs, first.fades) == ("3", 1.2, "until a repair")
    assert first.what == "XID 79: the GPU has fallen off the bus"
    assert (second.gpu, second.by) == ("2", "kopt health")
    assert second.what.startswith("XID 94: ")
    assert second.what.endswith(", 3 times")
    assert second.fades.startswith("halves every ")
    assert second.weighs is not None
    assert 0 < second.weighs < 0.8
    assert (last.gpu, last.weighs, last.fades) == ("5", 0.0, "the program's own fault: never counts")


def test_every_statement_names_who_says_it() -> None:
    said = [(line.gpu, line.by, line.what) for line in health_line(standing(), NOW_S).lines[3:]]
    assert said == [
        ("", "kopt health", "taint kaiwo.ai/gpu-unhealthy=XID_79:NoSchedule"),
        ("", "team.example.com", "taint team.example.com/hold:NoExecute"),
        ("", "kopt health", "condition GPUHealthy=False: GPU 3: XID 79"),
        ("", "NVSentinel", "condition GpuXidError=True: XID 79 on GPU 3"),
        ("3", "kopt health", "taint of gpu-3 of gpu.nvidia.com: kaiwo.ai/gpu-unhealthy=XID_79:NoSchedule"),
        ("", "DeviceTaintRule maintenance", "taint of every device of any driver: example.com/off:NoExecute"),
    ]


def test_the_map_follows_health_and_rules_and_forgets_them() -> None:
    keeper = GpuMapKeeper()
    keeper.node("gpu-0", reduced_node(NODE))
    healthy = keeper.current().nodes["gpu-0"]
    assert (healthy.standing.grade, len(healthy.standing.statements)) == (None, 4)
    keeper.health("gpu-0", standing_of(document(NOW_S)))
    for rule in RULES:
        keeper.device_taint(("", rule["metadata"]["name"]), rule)
    ill = keeper.current().nodes["gpu-0"]
    assert ill.standing == standing()
    assert ill.version > healthy.version
    keeper.health("gpu-0", None)
    for rule in RULES:
        keeper.device_taint(("", rule["metadata"]["name"]), None)
    assert keeper.current().nodes["gpu-0"].is_like(healthy)


@pytest.mark.parametrize(
    ("rights", "has_evidence", "has_statements"),
    [
        ((KUBERNETES_NODES, NODE_HEALTHS), True, True),
        ((KUBERNETES_NODES,), False, True),
        ((NODE_HEALTHS, pods_in("a")), False, False),
    ],
)
async def test_readers_are_shown_what_they_may_list(rights: Any, has_evidence: bool, has_statements: bool) -> None:
    visible = await seen_by(ill_map(), *rights)
    shown = visible.standing_of(visible.map.nodes["gpu-0"])
    assert (bool(shown.entries), shown.grade is not None) == (has_evidence, has_evidence)
    assert bool(shown.statements) == has_statements


async def test_the_page_has_them_in_words(tmp_path: Path) -> None:
    app = create_app(Settings(home=tmp_path), source=FixedSource(values(ill_map(time.time()))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=PAGES) as client:
        page = (await client.get("/gpus?node=gpu-0")).text
        healthy = (await client.get("/gpus?node=gpu-1")).text
    assert "Score 0.00 of 1" in page
    assert "mode enforce: condemned ones take no new pods" in page
    assert "DeviceTaintRule maintenance" in page
    assert '<span class="badge refused">condemned</span>' in page
    assert "The health controller says nothing of this node" in healthy


@pytest.mark.browser
async def test_it_fits_and_can_be_read(
    tmp_path: Path, serve_pages: Callable[[Any], str], open_page: Callable[..., Any]
) -> None:
    source = FixedSource(values(ill_map(time.time())))
    address = serve_pages(create_app(Settings(home=tmp_path), source=source, refresh_s=3600.0))
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360)):
        watched: Watched = await open_page(viewport={"width": width, "height": 1500}, color_scheme=scheme)
        await watched.page.goto(f"{address}/gpus?node=gpu-0")
        await watched.page.wait_for_selector("#health-title")
        assert await overflow(watched.page) <= 0
        assert await watched.page.evaluate(CONTRAST) == []
        assert watched.errors == []
