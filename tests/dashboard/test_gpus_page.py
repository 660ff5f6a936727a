"""The map of GPUs: what is on it, what somebody may see of it, and that an open page follows the cluster at once."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages_source import FixedSource
from playwright.async_api import Page

from kopt.cluster.client.resources import Object
from kopt.controllers.overview.devices.gpu_map import GpuMapKeeper
from kopt.core.scheduling.devices import GpuHolder
from kopt.core.scheduling.gpu_map import GpuActivity, GpuMap, map_node
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import KUBERNETES_NODES, Right, pods_in
from kopt.dashboard.data.feed import AnyFeed, Restricted
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.formatting import natural
from kopt.dashboard.pages.gpus.data import GPUS, VisibleMap
from kopt.dashboard.pages.gpus.view import GpuChoice, gpus_page, map_document
from kopt.dashboard.pages.queue.data import QUEUE
from tests.dashboard import queue_objects
from tests.dashboard.conftest import PAGES
from tests.dashboard.gpu_objects import NVIDIA, device, gpu_map
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow

__all__ = ["browser", "open_page"]
NOW_S = 1_900_000_000.0


def values(current: GpuMap, **more: Any) -> dict[AnyFeed, Any]:
    queue = queue_objects.state(NOW_S, queue_objects.queued("a/train-0", now_s=NOW_S))
    snapshot = Snapshot({}, Endpoint("http://127.0.0.1:8700"), NOW_S)
    return {SNAPSHOT: snapshot, GPUS: VisibleMap(current, **more), QUEUE: queue}


async def seen_by(current: GpuMap, *rights: Right) -> VisibleMap:
    async def may(asked: Any) -> Any:
        return set(asked) & set(rights)

    return await Restricted(FixedSource(values(current)), may).latest(GPUS)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    async def asking(address: str, current: GpuMap) -> httpx.Response:
        app = create_app(Settings(home=tmp_path), source=FixedSource(values(current)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=PAGES) as client:
            return await client.get(address)

    return asking


async def test_a_gpu_leads_to_its_pod_and_to_why(ask: Callable[..., Any]) -> None:
    page = (await ask("/gpus?node=gpu-0&gpu=3", gpu_map(4))).text
    assert "a/train-0" in page
    assert 'href="/queue?job=a%2Ftrain-0"' in page
    # What the page of queues does not list is explained by a command.
    assert "kopt why pod/train-1 -n b" in (await ask("/gpus?node=gpu-1", gpu_map(4))).text


async def test_without_telemetry_it_says_so(ask: Callable[..., Any]) -> None:
    page = (await ask("/gpus?node=gpu-0", gpu_map(4, measured=False))).text
    assert "is not measured" in page
    assert "(assumed)" in page
    assert "is not measured" not in (await ask("/gpus", gpu_map(4))).text


@pytest.mark.parametrize("since", ["-1", "x", "9" * 20, "١"])
async def test_a_version_that_is_none_is_refused(ask: Callable[..., Any], since: str) -> None:
    assert (await ask(f"/gpus/map.json?since={since}", gpu_map(4))).status_code == 400


def test_figures_are_those_of_the_map() -> None:
    page = gpus_page(VisibleMap(gpu_map(8)), (), GpuChoice("gpu-1"))
    assert (page.nodes, page.gpus, page.held, page.free, page.closed) == (8, 64, "32", 16, 16)
    assert [row.name for row in page.rows] == ["gpu-1"]
    assert page.idle == sum(
        share is not None and share < 0.05 for node in gpu_map(8).nodes.values() for share in node.busy
    )


async def test_names_of_other_namespaces_and_of_nodes_are_hidden_but_not_amounts() -> None:
    current = gpu_map(8)
    everything = await seen_by(current, pods_in("a"), pods_in("b"), KUBERNETES_NODES)
    own = await seen_by(current, pods_in("a"))
    nothing = await seen_by(current)
    assert everything.names_nodes
    assert not everything.hidden
    text = json.dumps(map_document(own))
    assert '"a/train-0"' in text
    assert "b/" not in text
    assert "train-1" not in text
    # A node is named by a pod of one's own on it; of others only the number is known.
    assert {name for name, _ in own.nodes()} == {"gpu-0", "gpu-4", *(f"node {n}" for n in (2, 3, 4, 6, 7, 8))}
    assert "gpu-" not in json.dumps(map_document(nothing))
    assert "train" not in json.dumps(map_document(nothing))
    amounts = [[cell[1:3] for cell in node[3]] for node in map_document(nothing)["nodes"]]
    assert amounts == [[cell[1:3] for cell in node[3]] for node in map_document(everything)["nodes"]]
    page = gpus_page(nothing, (), GpuChoice(node="node 2"))
    assert {(holder.namespace, holder.pod) for line in page.lines for holder in line.holders} == {("", "")}
    assert gpus_page(nothing, (), GpuChoice(node="gpu-1")).lines == ()


async def test_changes_are_told_of_one_epoch_alone() -> None:
    before = gpu_map(4)
    node = replace(before.nodes["gpu-2"], version=2)
    after = replace(before, version=2, nodes={**before.nodes, "gpu-2": node}, gone={"gpu-9": 2})
    document = map_document(VisibleMap(before))
    changed = map_document(VisibleMap(after), document["epoch"], 1)
    assert ([each[0] for each in changed["nodes"]], changed["gone"]) == (["gpu-2"], ["gpu-9"])
    # Somebody whose rights have changed meanwhile, and who knows what is forgotten, gets all of it.
    other = map_document(await seen_by(after, pods_in("a"), KUBERNETES_NODES), document["epoch"], 1)
    assert (other["since"], len(other["nodes"])) == (0, 4)
    forgotten = map_document(VisibleMap(replace(after, complete_since=1)), document["epoch"], 1)
    assert len(forgotten["nodes"]) == 4


def test_names_are_ordered_as_people_count() -> None:
    assert sorted(["b-10", "b-9", "a", "b", "b-9x", "B-9"], key=natural) == ["B-9", "a", "b", "b-9", "b-9x", "b-10"]


def test_an_exporter_that_names_pods_settles_which_gpu_they_hold() -> None:
    a, b = (GpuHolder("x", name, 1000, assumed=True) for name in "ab")
    gpus = [device("n", 0, a), device("n", 1, a), device("n", 2, b), device("n", 3)]
    said = {str(index): GpuActivity(0.5, ("x", pod)) for index, pod in enumerate(["", "b", "a", "a"]) if pod}
    node = map_node("n", gpus, said, {}, 1)
    assert [[holder.pod for holder in gpu.holders] for gpu in node.gpus] == [[], ["b"], ["a"], ["a"]]
    assert not any(holder.assumed for gpu in node.gpus for holder in gpu.holders)
    assert node.busy == (None, 0.5, 0.5, 0.5)


HOLDERS = st.lists(st.sampled_from(["", "a", "b", "c"]), min_size=1, max_size=8)


@given(held=HOLDERS, named=HOLDERS)
def test_whatever_an_exporter_says_nothing_is_lost_or_held_twice(held: list[str], named: list[str]) -> None:
    gpus = [
        device("n", index, *([GpuHolder("x", pod, 1000, assumed=True)] if pod else []))
        for index, pod in enumerate(held)
    ]
    said = {str(index): GpuActivity(0.1, ("x", pod)) for index, pod in enumerate(named)}
    node = map_node("n", gpus, said, {}, 1)
    assert sorted(holder.pod for gpu in node.gpus for holder in gpu.holders) == sorted(filter(None, held))
    assert [gpu.name for gpu in node.gpus] == [gpu.name for gpu in gpus]
    assert all(gpu.free_milli_gpu == 1000 - sum(h.milli_gpu for h in gpu.holders) for gpu in node.gpus)


def node_document(name: str, gpus: int = 8, ready: str = "True") -> Object:
    status = {"allocatable": {NVIDIA: str(gpus)}, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status}


def pod_document(name: str, node: str, gpus: int) -> Object:
    container = {"name": "c", "resources": {"limits": {NVIDIA: str(gpus)}}}
    metadata = {"name": name, "namespace": "x", "uid": name, "annotations": {}, "labels": {}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=25)


@given(steps=STEPS)
def test_the_map_after_any_changes_is_that_of_what_is_left(steps: list[tuple[int, int, int]]) -> None:
    """Nodes come, go and break, pods come and go; what was renewed piece by piece is what is read at once."""
    keeper, pods = GpuMapKeeper(), dict[str, Object]()
    nodes = {name: node_document(name) for name in ("n1", "n2")}
    for name, document in nodes.items():
        keeper.node(name, document)
    versions = [0]
    for kind, number, amount in steps:
        if kind == 0:
            document = node_document(f"n{number}", 4 * amount) if amount else None
            keeper.node(f"n{number}", document)
            _put(nodes, f"n{number}", document)
        else:
            old = pods.get(f"p{number}")
            new = pod_document(f"p{number}", f"n{kind}", amount) if amount else None
            keeper.pod(("x", f"p{number}"), old, new)
            _put(pods, f"p{number}", new)
        versions.append(keeper.current().version)
    fresh = GpuMapKeeper()
    for name, document in nodes.items():
        fresh.node(name, document)
    for name, document in pods.items():
        fresh.pod(("x", name), None, document)
    assert _shown(keeper.current()) == _shown(fresh.current())
    assert versions == sorted(versions)


def _put(objects: dict[str, Object], name: str, document: Object | None) -> None:
    if document is None:
        objects.pop(name, None)
    else:
        objects[name] = document


def _shown(current: GpuMap) -> Mapping[str, Any]:
    """Which GPU a pod is assumed to have depends on who came first; how many it has does not."""
    return {
        name: (len(node.gpus), Counter(holder.pod for gpu in node.gpus for holder in gpu.holders), node.jobs)
        for name, node in current.nodes.items()
    }


def test_what_shows_the_same_is_no_change() -> None:
    keeper = GpuMapKeeper()
    keeper.node("n", node_document("n"))
    first = keeper.current()
    keeper.node("n", node_document("n"))
    assert keeper.current() is first
    keeper.measured({"n": {"0": GpuActivity(0.5)}})
    assert keeper.current().is_measured
    assert keeper.current().nodes["n"].busy[0] == 0.5


class LiveMap(FixedSource):
    """A source whose map changes when the test says so."""

    def __init__(self, current: GpuMap) -> None:
        super().__init__(values(current))
        self.count, self.news = 0, asyncio.Condition()

    async def change(self, current: GpuMap) -> None:
        self.values[GPUS] = VisibleMap(current)
        self.count += 1
        async with self.news:
            self.news.notify_all()

    async def next_change(self, feed: AnyFeed, seen: int) -> int:
        async with self.news:
            await self.news.wait_for(lambda: self.count != seen)
        return self.count


def changed(current: GpuMap, name: str) -> GpuMap:
    """One GPU of a node is free now."""
    version, node = current.version + 1, current.nodes[name]
    gpus = (device(name, 0), *node.gpus[1:])
    return replace(current, version=version, nodes={**current.nodes, name: replace(node, gpus=gpus, version=version)})


@pytest.mark.browser
async def test_an_open_page_fetches_what_has_changed_when_it_has(
    tmp_path: Path, serve_pages: Callable[[Any], str], open_page: Callable[..., Any]
) -> None:
    source = LiveMap(gpu_map(200))
    address = serve_pages(create_app(Settings(home=tmp_path), source=source, refresh_s=3600.0))
    watched: Watched = await open_page()
    page, asked = watched.page, list[str]()
    page.on("request", lambda request: asked.append(request.url) if "map.json" in request.url else None)
    await page.goto(f"{address}/gpus")
    await page.wait_for_selector('#gpu-map[data-version="1"]')
    await page.wait_for_timeout(1500)
    assert len(asked) == 1, "nothing is asked while nothing changes"
    await page.focus("#gpu-map")
    await source.change(changed(source.values[GPUS].map, "gpu-0"))
    async with page.expect_response(lambda reply: "since=1" in reply.url) as reply:
        await page.wait_for_selector('#gpu-map[data-version="2"]')
    assert [node[0] for node in (await (await reply.value).json())["nodes"]] == ["gpu-0"]
    # The page is renewed as well, and the reader stays where they were.
    await page.wait_for_timeout(800)
    assert await page.evaluate("document.activeElement.id") == "gpu-map"
    await page.keyboard.press("End")
    await page.keyboard.press("Home")
    assert "gpu-0, GPU 0" in await page.inner_text("#gpu-here")
    assert "free" in await page.inner_text("#gpu-here")
    assert watched.errors == []


@pytest.mark.browser
async def test_a_keyboard_reaches_a_pod_and_a_phone_shows_it(
    tmp_path: Path, serve_pages: Callable[[Any], str], open_page: Callable[..., Any]
) -> None:
    # A key that is pressed in the moment in which the page is renewed is lost.
    address = serve_pages(create_app(Settings(home=tmp_path), source=LiveMap(gpu_map(40)), refresh_s=3600.0))
    for scheme in ("light", "dark"):
        page: Page = (await open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)).page
        await page.goto(f"{address}/gpus")
        await page.wait_for_selector("#gpu-map[data-version]")
        await page.focus("#gpu-map")
        for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.keyboard.press(key)
        assert (await page.inner_text("#gpu-here")).endswith("held, busy 13 % of the time, a/train-0")
        assert await overflow(page) <= 0
        assert await page.evaluate(CONTRAST) == []
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#node-title")
        assert await page.inner_text("tr[aria-current] th") == "1\nNVIDIA-H100-80GB-HBM3"
        await page.get_by_role("link", name="why a/train-0 runs here").first.click()
        await page.wait_for_url("**/queue?job=a%2Ftrain-0")
