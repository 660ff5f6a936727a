"""The heat map of pairs on the topology page, over a running endpoint that was told of them."""

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest
from bandwidth_nodes import cube_mesh
from playwright.async_api import Page, expect

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import Health, MeasuredPair, MeasuredPoint
from kopt.dashboard.pages.topology.data import PAIRS, Pairs
from kopt.dashboard.pages.topology.pairs import MOST_NODES, pairs_part
from kopt.serving.bandwidth.service import BandwidthService
from kopt.serving.contract.bandwidth.pairwise_answers import PairNodeOut, PairOut, PairsResponse, pairwise_request
from kopt.serving.contract.common import ModelOut
from kopt.serving.endpoint.app import create_app as endpoint_app
from tests.dashboard.conftest import HOSTILE_NAME, Platform
from tests.dashboard.test_browser import CONTRAST, Watched, address, browser, open_page, overflow
from tests.dashboard.test_topology_page import figure

__all__ = ["address", "browser", "open_page"]
NOW_S = time.time()
Told = Callable[..., Awaitable[None]]


def pair(a: str, b: str, gbps: float = 11.0, health: Health = Health.HEALTHY, **more: Any) -> MeasuredPair:
    """Sixteen GPUs at ``gbps`` of bus bandwidth, with 30 µs in front."""
    points = tuple(MeasuredPoint(1 << n, 30 + (1 << n) * 1.875 / gbps / 1e3) for n in range(16, 31, 2))
    if health is Health.FAILED:
        points = ()
    return MeasuredPair(
        (a, b),
        8,
        Collective.ALL_REDUCE,
        **{
            "measured_at": NOW_S - 7200,
            "points": points,
            "alpha_us": 30.0 if points else None,
            "beta_gbps": gbps if points else None,
            "software": "nccl 2.27.3",
            "health": health,
            **more,
        },
    )


def rack(count: int, *, sparse: bool = False) -> tuple[list[str], list[MeasuredPair], dict[str, list[str]]]:
    """Nodes of two blocks with racks of eight; the third one is slow, a pair of the first failed."""
    names = [f"gpu-{n:02}.east.example" for n in range(count)]
    domains = {name: [f"block-{n // 32}", f"rack-{n // 8}"] for n, name in enumerate(names)}
    pairs = []
    for n, a in enumerate(names):
        for m in range(n + 1, count):
            slow, failed = 2 in (n, m), (n, m) == (0, 1)
            if sparse and not slow and not failed and (n * 7 + m * 3) % 5:
                continue
            wave = 1 + 0.08 * (((n * 13 + m * 5) % 7) - 3) / 3
            health = Health.FAILED if failed else Health.SLOW if slow else Health.HEALTHY
            reason = "the log is cut" if failed else "4.4 GB/s is .4 of what such pairs reach" if slow else ""
            pairs.append(pair(a, names[m], (4.4 if slow else 11.0) * wave, health, reason=reason))
    return names, pairs, domains


@pytest.fixture
def told(platform: Platform) -> Told:
    """Tells the endpoint of pairs, and the pages refresh."""

    async def tell(
        pairs: Sequence[MeasuredPair], names: Sequence[str], domains: Any = None, cluster: str = "east"
    ) -> None:
        bandwidth = platform.endpoint.service(BandwidthService)
        assert bandwidth is not None
        bandwidth.refresh()
        transport = httpx.ASGITransport(endpoint_app(platform.endpoint, manage=False))
        headers = {"x-kopt-deadline-ms": "30000"}
        async with httpx.AsyncClient(transport=transport, base_url="http://endpoint", headers=headers) as client:
            for start in range(0, len(pairs), 500):
                known = dict.fromkeys(names, cube_mesh()) if start == 0 else {}
                body = pairwise_request(cluster, pairs[start : start + 500], known, domains if start == 0 else None)
                reply = await client.post("/v1/bandwidth/pairs", json=body)
                assert reply.status_code == 200, reply.text
        platform.live.reader(PAIRS).due_s = 0.0  # type: ignore[attr-defined]
        await platform.live.refresh(PAIRS)

    return tell


async def test_pairs_are_drawn_beside_what_is_predicted(pages: httpx.AsyncClient, told: Told) -> None:
    names, pairs, domains = rack(6)
    del pairs[-2:]
    await told(pairs, names, domains)
    html = (await pages.get("/topology")).text
    drawn = figure(html, "cluster")
    shares, others, slow, failed, open_ = drawn["data"]
    assert drawn["layout"]["xaxis"]["ticktext"] == [name.split(".")[0] for name in names]
    assert (shares["z"][0][2], others["z"][0][2]) != (None, None)
    assert shares["z"][2][0] == shares["z"][0][2] < 0.6
    # The failed pair has no share, and a mark of its own.
    assert shares["z"][0][1] is None
    assert sorted(zip(failed["x"], failed["y"], strict=True)) == [(0, 1.27), (1, 0.27)]
    assert len(slow["x"]) == 2 * 5
    assert len(open_["x"]) == 2 * (15 - len(pairs))
    # A cell is one thing: measured, failed, or not measured; the diagonal is nothing.
    assert len(open_["x"]) + 2 * len(pairs) + 6 == 36
    words = shares["hovertext"][0][2].split("<br>")
    assert words[0] == "gpu-00.east.example with gpu-02.east.example"
    assert "of that" in words[1]
    assert "alpha 30 µs" in words[2]
    assert "nccl 2.27.3" in words[3]
    assert words[4].startswith("slow: 4.4 GB/s")
    unmeasured = [others["hovertext"][int(y)][x] for x, y in zip(open_["x"], open_["y"], strict=True)]
    assert all("not measured; predicted" in one for one in unmeasured)
    assert "gpu-02.east.example</b>: all_reduce with 5 of 5 nodes" in html
    assert "1 pair slow or failed without such a node" in html
    assert "the log is cut" in html


async def test_without_pairs_the_page_says_how_to_get_them(pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/topology")).text
    assert "None has been measured yet" in html
    assert "PairwiseBenchmark" in html
    assert "kopt bandwidth pairs node-1,node-2=all_reduce.log" in html


async def test_an_endpoint_that_is_away_leaves_what_was_known(
    pages: httpx.AsyncClient, platform: Platform, told: Told
) -> None:
    names, pairs, domains = rack(4)
    await told(pairs, names, domains)
    platform.down[0] = True
    platform.live.reader(PAIRS).due_s = 0.0  # type: ignore[attr-defined]
    await platform.live.refresh(PAIRS)
    html = (await pages.get("/topology")).text
    assert "Measured pairs of nodes are not told" in html
    assert 'data-figure="cluster-figure"' in html


async def test_clusters_and_what_was_measured_can_be_chosen(pages: httpx.AsyncClient, told: Told) -> None:
    names, pairs, domains = rack(4)
    few = pair(names[0], names[1], 3.0)
    other = MeasuredPair(few.nodes, 1, Collective.SENDRECV, NOW_S, few.points, 30.0, 3.0)
    await told([*pairs, other], names, domains)
    await told(pairs[:3], names, domains, "west")
    html = (await pages.get("/topology")).text
    assert "Pairs of nodes: east" in html
    assert "all_reduce, 8 GPUs per node: 6" in html
    assert len(figure(html, "cluster")["data"][4]["x"]) == 0
    one = (await pages.get("/topology?pairs=sendrecv-1")).text
    assert len(figure(one, "cluster")["data"][4]["x"]) == 2 * 5
    assert "Pairs of nodes: west" in (await pages.get("/topology?cluster=west")).text
    hostile = await pages.get("/topology", params={"cluster": HOSTILE_NAME, "pairs": HOSTILE_NAME})
    assert "Pairs of nodes: east" in hostile.text
    assert HOSTILE_NAME not in hostile.text


def node(name: str, health: Health = Health.HEALTHY, domains: tuple[str, ...] = ()) -> PairNodeOut:
    return PairNodeOut(name, health, "", domains, None)


def cluster_pairs(cluster: str, nodes: tuple[PairNodeOut, ...], pairs: tuple[PairOut, ...]) -> PairsResponse:
    model = ModelOut("bandwidth", "1", "")
    return PairsResponse(cluster=cluster, clusters=(cluster,), nodes=nodes, pairs=pairs, expected=(), model=model)


def test_hostile_words_stay_words() -> None:
    one = pair("a", "b", health=Health.SLOW, reason=f"{HOSTILE_NAME}</script>", software=HOSTILE_NAME)
    nodes = (node("a"), node("b", domains=(HOSTILE_NAME,)))
    found = cluster_pairs(HOSTILE_NAME, nodes, (PairOut.of(one),))
    card = pairs_part(Pairs((found,))).card
    assert card is not None
    assert HOSTILE_NAME not in json.dumps(card.chart.to_plotly_json(), default=list)


def test_of_many_nodes_those_with_something_wrong_are_drawn() -> None:
    names = [f"n{n}" for n in range(MOST_NODES + 50)]
    nodes = tuple(node(name, Health.SLOW if name == "n140" else Health.HEALTHY) for name in names)
    card = pairs_part(Pairs((cluster_pairs("east", nodes, (PairOut.of(pair("n100", "n120")),)),))).card
    assert card is not None
    assert (len(card.nodes), card.total_nodes) == (MOST_NODES, MOST_NODES + 50)
    assert "n140" in {one.name for one in card.nodes}
    assert [one.name for one in card.nodes][:3] == ["n0", "n1", "n2"]


@pytest.mark.browser
async def test_a_person_reads_a_pair_and_its_sick_node(address: str, open_page: Callable[..., Any], told: Told) -> None:
    names, pairs, domains = rack(64, sparse=True)
    await told(pairs, names, domains)
    watched: Watched = await open_page(viewport={"width": 1280, "height": 1000})
    page: Page = watched.page
    await page.goto(address + "/topology")
    await watched.charts(1)
    await expect(page.locator("#sick")).to_contain_text("gpu-02.east.example")
    shown = await page.locator("#cluster").inner_text()
    assert {"rack-0", "rack-7", "slow", "failed", "not measured"} <= set(shown.split("\n"))
    box = await page.locator("#cluster .nsewdrag").first.bounding_box()
    assert box is not None
    # Row 4, column 2: a pair of the slow node.
    await page.mouse.move(box["x"] + box["width"] * 2.5 / 64, box["y"] + box["height"] * 4.5 / 64)
    hover = page.locator("#cluster .hoverlayer")
    await expect(hover).to_contain_text("gpu-02.east.example with gpu-04.east.example")
    await expect(hover).to_contain_text("slow")
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("count", [4, 64])
async def test_it_is_read_on_a_phone_and_in_the_dark(
    address: str, open_page: Callable[..., Any], told: Told, scheme: str, count: int
) -> None:
    names, pairs, domains = rack(count)
    await told(pairs, names, domains)
    watched: Watched = await open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    await watched.page.goto(address + "/topology")
    await watched.charts(1)
    assert await overflow(watched.page) <= 0
    assert await watched.page.evaluate(CONTRAST) == []
    plot = await watched.page.locator("#cluster .nsewdrag").first.bounding_box()
    assert plot is not None
    # Of many nodes the picture scrolls inside its own box, so that a cell can still be pointed at.
    assert plot["width"] / count > 5
    if count == 4:
        assert plot["x"] + plot["width"] <= 360
