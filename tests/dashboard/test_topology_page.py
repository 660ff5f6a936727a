"""The page of topologies: a pasted output or a node of the cluster, drawn and asked about; hostile text stays text."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import node_outputs
import pytest
import topology_outputs as rendered
import yaml
from asgi_server import served
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from playwright.async_api import Page, expect

from kopt.agents.topology.documents import spec_of
from kopt.cli.local.pages.serve import cluster_of
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.node_topology import DegradedPart, NodeTopology
from kopt.core.scheduling.gpu_map import GpuMap
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.scheduling.queued import QueueState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app, pages_client
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.sources import ClusterNode, Nodes
from kopt.dashboard.live import LiveSource
from kopt.dashboard.pages.topology.bandwidth_model import LASTS_S, BandwidthModel
from kopt.dashboard.pages.topology.data import NODES as TOPOLOGY_NODES
from kopt.dashboard.pages.topology.data import NODES_EVERY_S
from kopt.dashboard.pages.topology.form import MAX_TEXT_BYTES, SIZES, TopologyQuery
from kopt.dashboard.pages.topology.view import MOST_COMPARED, MOST_LISTED, topology_page
from kopt.formats.topology import parse
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.registry.artifact import ArtefactError
from kopt.sdk import bandwidth as ask
from tests.dashboard.conftest import HOSTILE_NAME, PAGES, Platform, Wire
from tests.dashboard.test_browser import CONTRAST, Watched, address, browser, open_page, overflow

__all__ = ["address", "browser", "open_page"]
CUBE = node_outputs.topo_m(8, node_outputs.CUBE_MESH, {"mlx5_0": 0, "mlx5_1": 4})
FORM = {"content-type": "application/x-www-form-urlencoded"}


def node_of(text: str, name: str = "") -> NodeTopology:
    found = parse(text)
    assert isinstance(found, NodeTopology)
    return NodeTopology.from_dict(found.to_dict() | {"node": name})


NODES = Nodes(
    (
        ClusterNode(node_of(CUBE, "gpu-7"), (DegradedPart("link GPU0 GPU3", 2, 1),)),
        ClusterNode(node_of(rendered.topo_m(rendered.machine(1)), HOSTILE_NAME)),
    ),
    cluster=True,
)


async def paste(pages: httpx.AsyncClient, text: str = CUBE, **fields: Any) -> str:
    """The page for a pasted text; a field with several values is a list."""
    body = urlencode({"text": text, "gpu": "V100-SXM2-16GB", **fields}, doseq=True)
    reply = await pages.post("/topology", content=body, headers=FORM)
    assert reply.status_code == 200, reply.text
    return reply.text


def figure(html: str, name: str = "node") -> Any:
    """A chart of the page."""
    found = re.search(rf'id="{name}-figure">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def cells(html: str, collective: str) -> list[float]:
    """GB/s of one row of the table."""
    row = re.search(rf'<th scope="row">{collective}</th>(.*?)</tr>', html, re.DOTALL)
    assert row is not None
    return [float(one.replace(",", "")) for one in re.findall(r'µs">([\d.,]+)', row[1])]


async def test_a_pasted_output_is_drawn_and_predicted_as_the_command_does(pages: httpx.AsyncClient) -> None:
    html = await paste(pages, gpus=[0, 1, 2, 3])
    assert 'data-figure="node-figure"' in html
    assert 'data-figure="pairs-figure"' in html
    said = ask.bandwidth(CUBE, (0, 1, 2, 3), "all_gather", SIZES[-1], gpu="V100-SXM2-16GB")
    assert cells(html, "all_gather")[-1] == pytest.approx(said.bus_gigabytes_per_s, rel=0.01)
    assert html.count(" checked>") == 4
    # The text goes with the form, so that the next question is about the same node.
    assert "NV2" in unescape(html.split("<textarea", 1)[1])


async def test_none_chosen_means_all(pages: httpx.AsyncClient) -> None:
    html = await paste(pages)
    assert "of GPUs 0, 1, 2, 3, 4, 5, 6, 7" in html
    assert cells(html, "all_reduce") == cells(await paste(pages, gpus=list(range(8))), "all_reduce")


async def test_the_best_set_is_chosen_and_said_why(pages: httpx.AsyncClient) -> None:
    html = await paste(pages, best=1, count=4)
    chosen = [int(one) for one in re.findall(r'value="(\d)" checked>', html)]
    # Either quad of the hybrid cube mesh is a full mesh of links.
    assert chosen in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert "of 8 free ones reach" in html
    worse = await paste(pages, gpus=[0, 1, 6, 7])
    assert cells(html, "all_reduce")[-1] > cells(worse, "all_reduce")[-1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bash: nvidia-smi: command not found", "not the output of a tool that is known here"),
        (CUBE[: len(CUBE) // 4], "line "),
        (rendered.fabric(), "a fabric or measurements"),
        ("\x00" * 50, "zero bytes"),
        ("[" * 5000, "line 1"),
        ("9" * MAX_TEXT_BYTES, "known"),
        ("x" * (MAX_TEXT_BYTES + 1), "More than 512 KiB"),
    ],
)
async def test_what_is_no_node_is_refused_with_its_place(pages: httpx.AsyncClient, text: str, message: str) -> None:
    html = await paste(pages, text)
    assert "No node can be drawn" in html
    assert message in unescape(html)
    assert "data-figure" not in html


async def test_a_matrix_with_a_cell_too_many_is_refused_and_no_error_of_ours(pages: httpx.AsyncClient) -> None:
    html = await paste(pages, "\tGPU0\tGPU1\nGPU0\t X \tNV4\tx\nGPU1\tNV4\t X \n")
    assert "the row of GPU0 has 1 of 0 cells of affinity" in html


async def test_the_place_of_an_error_is_shown(pages: httpx.AsyncClient) -> None:
    lines = CUBE.split("\n")
    lines[3] = lines[3].replace("NV2", "NV?", 1)
    html = unescape(await paste(pages, "\n".join(lines)))
    assert re.search(r"line 4(, column \d+)?: ", html)
    assert re.search(r"<b>    4  GPU2", html)


async def test_too_long_a_form_is_not_read_to_its_end(pages: httpx.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b"text="
        while True:
            sent += 1 << 16
            yield b"x" * (1 << 16)

    reply = await pages.post("/topology", content=endless(), headers=FORM)
    assert "More than 512 KiB" in reply.text
    assert sent < 8 * MAX_TEXT_BYTES


async def test_hostile_fields_change_nothing_and_stay_text(pages: httpx.AsyncClient) -> None:
    html = await paste(
        pages,
        gpus=["-1", "99", HOSTILE_NAME, "1e3", "٣"],
        collective=HOSTILE_NAME,
        bytes="-5",
        count="0",
        best="1",
        gpu=HOSTILE_NAME,
    )
    assert HOSTILE_NAME not in html
    assert "data-figure" in html
    evil = CUBE.replace("mlx5_0", HOSTILE_NAME) + f"\n</textarea>{HOSTILE_NAME}\n"
    assert HOSTILE_NAME not in await paste(pages, evil)
    many = "&".join(f"gpus={n}" for n in range(1000))
    reply = await pages.post("/topology", content=many, headers=FORM)
    assert "more fields" in reply.text
    assert (await pages.get(f"/topology?{many}")).status_code == 200


async def test_a_form_of_another_site_is_refused(pages: httpx.AsyncClient) -> None:
    body = urlencode({"text": CUBE})
    foreign = await pages.post("/topology", content=body, headers=FORM | {"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert "another site" in foreign.text
    own = await pages.post("/topology", content=body, headers=FORM | {"origin": PAGES})
    assert own.status_code == 200


async def test_without_a_cluster_the_page_says_what_to_give_it(pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/topology")).text
    assert "nvidia-smi topo -m" in html
    assert "These pages are not connected to a cluster" in html


class ScriptedCluster:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.answer = NODES

    async def nodes(self) -> Nodes:
        return self.answer

    def overview(self) -> Overview:
        return Overview()

    async def queue(self) -> QueueState:
        return QueueState()

    async def changed(self) -> None:
        await asyncio.Event().wait()

    async def queue_tree(self) -> QueueTreeState:
        return QueueTreeState()

    async def queue_tree_changed(self) -> None:
        await asyncio.Event().wait()

    def gpus(self) -> GpuMap:
        return GpuMap()

    async def gpus_changed(self) -> None:
        await asyncio.Event().wait()

    async def run(self) -> None:
        pass

    async def close(self) -> None:
        pass


@dataclass
class Clustered:
    """The pages with a cluster of two nodes."""

    cluster: ScriptedCluster
    live: LiveSource
    pages: httpx.AsyncClient
    now_s: list[float]


@pytest.fixture
async def clustered(platform: Platform) -> AsyncIterator[Clustered]:
    cluster, now_s = ScriptedCluster(), [1e9]
    endpoint = pages_client("http://endpoint", transport=Wire(platform.endpoint, platform.down))
    live = LiveSource(
        FolderHistories(platform.settings.home / "demand"),
        endpoint,
        platform.registry,
        url="http://endpoint",
        home=platform.settings.home,
        cluster=cluster,
        clock=lambda: now_s[0],
    )
    await live.refresh(TOPOLOGY_NODES)
    transport = httpx.ASGITransport(create_app(platform.settings, source=live), raise_app_exceptions=False)
    async with endpoint, httpx.AsyncClient(transport=transport, base_url=PAGES) as pages:
        yield Clustered(cluster, live, pages, now_s)


async def test_nodes_of_the_cluster_are_listed_and_drawn(clustered: Clustered) -> None:
    html = (await clustered.pages.get("/topology")).text
    assert html.count('<th scope="row"><a href="/topology?node=') == 2
    assert "1 degraded" in html
    assert html.index("gpu-7") < html.index("&lt;script&gt;")
    asked = {"node": "gpu-7", "gpu": "V100-SXM2-16GB", "gpus": "0"}
    named = (await clustered.pages.get("/topology", params=asked)).text
    assert "link GPU0 GPU3: 1 of 2" in named
    assert "NVLINK 50 GB/s, degraded" in {trace.get("name") for trace in figure(named)["data"]}
    hostile = (await clustered.pages.get("/topology", params={"node": HOSTILE_NAME})).text
    assert HOSTILE_NAME not in hostile
    assert "4 ×" in hostile
    assert "No node of this name" in (await clustered.pages.get("/topology?node=gpu-8")).text


async def test_a_cluster_that_is_away_leaves_what_was_known(clustered: Clustered) -> None:
    clustered.cluster.answer = Nodes(cluster=True, problem="The API server is away.")
    await clustered.live.refresh(TOPOLOGY_NODES)
    # Nodes are asked for once a minute.
    assert "The API server is away." not in (await clustered.pages.get("/topology")).text
    clustered.now_s[0] += NODES_EVERY_S + 1
    await clustered.live.refresh(TOPOLOGY_NODES)
    html = (await clustered.pages.get("/topology?node=gpu-7")).text
    assert "The API server is away." in html
    assert "link GPU0 GPU3: 1 of 2" in html


async def test_the_pages_read_what_agents_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP, as an API server tells it; an object that contradicts itself is named and left out."""
    item = {
        "metadata": {"name": "gpu-7"},
        "spec": spec_of(node_of(CUBE)),
        "status": {"degraded": [{"part": "link GPU0 GPU3", "was": 2, "now": 1}]},
    }
    torn = {"metadata": {"name": "gpu-8"}, "spec": {"gpus": [{"index": 0}, {"index": 0}]}}
    down = [False]
    server = FastAPI()

    async def listed(watch: str = "") -> JSONResponse:
        if down[0] or watch:
            return JSONResponse({"kind": "Status", "reason": "InternalError", "message": "etcd", "code": 500}, 500)
        return JSONResponse({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [torn, item]})

    server.add_api_route("/apis/kaiwo.ai/v1alpha1/nodetopologies", listed)
    with served(server, lifespan="off") as address:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        reader = cluster_of({"KUBECONFIG": str(tmp_path / "config")})
        assert reader is not None
        watching = asyncio.create_task(reader.run())
        try:
            found = await reader.nodes()
            assert found.nodes[0].topology.links == node_of(CUBE).links
            assert [one.topology.node for one in found.nodes] == ["gpu-7"]
            assert found.nodes[0].degraded == (DegradedPart("link GPU0 GPU3", 2, 1),)
            assert "gpu-8" in found.problem
            down[0] = True
            monkeypatch.setattr("kopt.cli.local.pages.watch_problems.STALE_S", 0.0)
            async with asyncio.timeout(60):
                while "etcd" not in (known := await reader.nodes()).problem:
                    await asyncio.sleep(0.05)
            assert [one.topology.node for one in known.nodes] == ["gpu-7"]
        finally:
            watching.cancel()
            await reader.close()


def test_a_home_with_a_kubeconfig_is_no_cluster_of_the_pages(tmp_path: Path) -> None:
    assert cluster_of({"HOME": str(tmp_path)}) is None
    assert cluster_of({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) is None


async def test_of_many_nodes_a_hundred_are_listed_and_any_can_be_named(clustered: Clustered) -> None:
    many = [ClusterNode(node_of(CUBE, f"gpu-{n:04}")) for n in range(MOST_LISTED + 20)]
    clustered.cluster.answer = Nodes((*many, NODES.nodes[0]), cluster=True)
    clustered.now_s[0] += NODES_EVERY_S + 1
    await clustered.live.refresh(TOPOLOGY_NODES)
    html = (await clustered.pages.get("/topology?node=gpu-0119")).text
    assert html.count('<a href="/topology?node=') == MOST_LISTED
    assert "100 of 121" in html
    assert "gpu-0119: 8 ×" in html
    assert ">gpu-7</a>" in html


def test_more_gpus_than_can_be_compared_are_drawn_all_the_same() -> None:
    text = rendered.topo_m(rendered.machine(5, gpus=MOST_COMPARED + 1, cards=1))
    view = topology_page(Nodes(), TopologyQuery(text, best=True), load_bandwidth("shipped"))
    assert view.card is not None
    assert view.card.best is None
    assert "kopt bandwidth place" in view.card.remarks[0]
    assert len(view.card.reached) == len(Collective)


def test_without_a_model_the_node_is_drawn_and_the_page_says_so(tmp_path: Path) -> None:
    now, loads = [0.0], [0]

    def load(_: str, __: Settings) -> Any:
        loads[0] += 1
        if loads[0] == 1:
            raise ArtefactError("its digest is another")
        return load_bandwidth("shipped")

    model = BandwidthModel(Settings(home=tmp_path), load, lambda: now[0])
    view = topology_page(Nodes(), TopologyQuery(CUBE), model.current())
    assert view.card is not None
    assert "its digest is another" in " ".join(view.card.remarks)
    assert "node" in view.card.charts
    assert isinstance(model.current(), str)
    now[0] = LASTS_S + 1
    assert topology_page(Nodes(), TopologyQuery(CUBE), model.current()).card.reached  # type: ignore[union-attr]
    assert loads == [2]


@pytest.mark.browser
async def test_a_person_pastes_an_output_chooses_gpus_and_reads_the_answer(
    address: str, open_page: Callable[..., Any]
) -> None:
    watched: Watched = await open_page(viewport={"width": 1280, "height": 1000})
    page: Page = watched.page
    await page.goto(address + "/topology")
    await page.fill("#text", CUBE)
    await page.get_by_role("button", name="Draw it").click()
    await watched.charts(2)
    shown = await page.locator("#node").inner_text()
    assert {"0", "7", "mlx5_0", "NUMA 1"} <= set(shown.split("\n"))
    await page.locator("select[name=count]").select_option("4")
    await page.get_by_role("button", name="Choose it").click()
    await expect(page.locator("#best")).to_contain_text("of 8 free ones reach")
    await expect(page.locator("input[name=gpus]:checked")).to_have_count(4)
    await watched.charts(2)
    assert "chosen" in await page.locator("#node").inner_text()
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_read_on_a_phone_and_in_the_dark(address: str, open_page: Callable[..., Any], scheme: str) -> None:
    watched: Watched = await open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    await watched.page.goto(address + "/topology")
    assert await overflow(watched.page) <= 0
    await watched.page.fill("#text", CUBE)
    await watched.page.get_by_role("button", name="Draw it").click()
    await watched.charts(2)
    assert await overflow(watched.page) <= 0
    assert await watched.page.evaluate(CONTRAST) == []
