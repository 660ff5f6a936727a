"""The page of sizes over a running endpoint: asked, needed, bars, reasons and the patch; hostile names stay text."""

import json
import re
from html import unescape

import httpx

from kopt.dashboard.pages.sizes.data import SIZES, Sizes
from kopt.dashboard.pages.sizes.view import BAR_WIDTH, CHART_HEIGHT, recommendations
from kopt.serving.endpoint.app import create_app as endpoint_app
from tests.admission.patching import patched
from tests.dashboard.conftest import HOSTILE_NAME, Platform
from tests.parallelism.test_useful_count import manifest, read


async def test_a_job_is_shown_with_what_it_needs_and_the_patch(asked: Platform, pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/recommendations?q=finetune")).text
    assert html.count("<article") == 1
    assert "1 GPU<" in html
    assert "given back" in html
    assert "KNOWN_TRACE" in html or "LEARNED_OVERHEAD" in html
    patch = json.loads(unescape(re.search(r'<pre id="patch0">(.*?)</pre>', html, re.DOTALL)[1]))  # type: ignore[index]
    assert int(patch["metadata"]["annotations"]["kaiwo.ai/gpu-memory"]) > 5 * 1024
    assert 'data-copy="patch0"' in html


async def test_an_unknown_size_has_reasons_but_no_bar_and_no_patch(asked: Platform, pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/recommendations?q=unknown.py")).text
    assert "not known" in html
    assert "NO_CODE_ESTIMATE" in html
    assert "<pre" not in html
    assert 'class="parts"' not in html


async def test_hostile_names_stay_text(asked: Platform, pages: httpx.AsyncClient) -> None:
    reply = await pages.get("/recommendations", params={"q": HOSTILE_NAME})
    assert HOSTILE_NAME not in reply.text
    assert reply.text.count("<article") == 1


async def test_bars_add_up_to_the_peak_within_the_interval(asked: Platform) -> None:
    view = recommendations(await asked.live.latest(SIZES), "finetune")
    (card,) = view.cards
    end = card.parts[-1].x + card.parts[-1].width
    assert card.low <= end + 0.5
    assert end <= card.high <= BAR_WIDTH + 1e-6
    assert [part.name for part in card.parts][:3] == ["weights", "gradients", "optimizer"]


async def test_an_endpoint_that_is_down_leaves_what_was_known(asked: Platform, pages: httpx.AsyncClient) -> None:
    asked.down[0] = True
    await asked.live.refresh(SIZES)
    html = (await pages.get("/recommendations")).text
    assert "from the last time" in html
    assert html.count("<article") == 3


async def test_before_anything_was_asked_the_page_says_how(pages: httpx.AsyncClient) -> None:
    assert "kopt recommend" in (await pages.get("/recommendations")).text
    assert recommendations(Sizes()).cards == ()


async def test_how_many_gpus_are_useful_is_drawn_with_the_threshold_and_its_patch(
    asked: Platform, pages: httpx.AsyncClient
) -> None:
    job = manifest(8, 8, 64)
    transport = httpx.ASGITransport(endpoint_app(asked.endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://endpoint") as client:
        question = {"workload": job, "gpu": "h100-80gb", "scaling": True}
        await client.post("/v1/sizing", json=question, headers={"x-kopt-deadline-ms": "60000"})
    await asked.live.refresh(SIZES)
    (card,) = recommendations(await asked.live.latest(SIZES), "pretrain").cards
    chart = card.scaling
    assert chart is not None
    heights = {bar.gpus: bar.height for bar in chart.bars}
    useful = [bar for bar in chart.bars if bar.useful]
    assert max(bar.gpus for bar in useful) == chart.count.useful_gpus
    line = CHART_HEIGHT - chart.threshold_y
    assert all(height >= line - 0.01 for gpus, height in heights.items() if gpus <= (chart.count.useful_gpus or 0))
    assert min(heights.values()) < line
    html = (await pages.get("/recommendations?q=pretrain")).text
    assert f"{chart.count.advised_gpus} of 64" in html
    patch = json.loads(unescape(re.search(r'<pre id="count0">(.*?)</pre>', html, re.DOTALL)[1]))  # type: ignore[index]
    assert read(patched(job, patch))[1] == chart.count.advised_gpus
