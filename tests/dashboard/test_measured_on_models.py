"""The page of models shows predicted against measured: a chart, shares by version, and only what its reader may see."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pages_source import FixedSource

from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.core.units import GIB
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import pods_in
from kopt.dashboard.pages.models.data import MODELS, Models
from kopt.models.registry.registry import RegisteredModel
from kopt.serving.contract.common import ReasonOut
from kopt.serving.contract.model_answers import ComparisonOut, IntervalHealthOut
from tests.dashboard.test_browser import browser, open_page, overflow
from tests.dashboard.test_pages import figures_in

__all__ = ["browser", "open_page"]
NASTY = "<script>alert(1)</script>"


def comparison(number: int, *, unit: float, times: float, namespace: str = "team-a") -> ComparisonOut:
    value = unit * (4 + 3 * number)
    return ComparisonOut(
        f"job-{number} {NASTY}", namespace, 1e9 + number, value, value / 1.1, value * 1.15, value * times
    )


def entry(
    predictor: str, role: str, version: str, unit: str, times: float, *, alarm: bool = False
) -> IntervalHealthOut:
    scale = GIB if unit == "bytes" else 10.0
    why = ReasonOut("INTERVALS_MISS", "60.0% of the last 15 measurements lay in the predicted interval.", {})
    newest = tuple(comparison(n, unit=scale, times=times * (1.3 if n % 3 == 0 else 1.0)) for n in range(15))
    coverage = sum(each.low <= each.measured <= each.high for each in newest) / len(newest)
    figures = {"coverage": coverage, "error": abs(times - 1) + 0.01, "bias": times - 1}
    return IntervalHealthOut(
        predictor,
        role,
        version,
        unit,
        15,
        0.98,
        **figures,
        alarm=alarm,
        widened_for=2 if alarm else 0,
        reasons=(why,) if alarm else (),
        newest=newest,
    )


MEASURED = Models(
    measured=(
        entry("sizing", "champion", "shipped", "bytes", 1.05, alarm=True),
        entry("sizing", "challenger", "4", "bytes", 1.0),
        entry("bandwidth", "champion", "2", "GB/s", 0.97),
    )
)


@pytest.fixture
def application(tmp_path: Path) -> Any:
    return create_app(Settings(home=tmp_path), source=FixedSource({MODELS: MEASURED}))


async def test_every_version_has_its_share_and_every_predictor_its_chart(application: Any) -> None:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        html = (await client.get("/models")).text
    assert "widened for 2" in html
    assert "60.0% of the last 15 measurements" in html
    assert NASTY not in html
    figures = figures_in(html)
    sizing = figures["measured-sizing"]["data"]
    names = [trace["name"] for trace in sizing]  # type: ignore[attr-defined]
    assert names == ["predicted as measured", "challenger", "champion"]
    first = sizing[1]["x"][0]  # type: ignore[index]
    assert first == pytest.approx(4.0), "bytes are shown in GiB"
    assert math.isclose(figures["measured-bandwidth"]["data"][1]["x"][0], 40.0)  # type: ignore[index]


async def test_before_anything_was_measured_the_page_says_what_is(tmp_path: Path) -> None:
    application = create_app(Settings(home=tmp_path), source=FixedSource({}))
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert "has been compared with a measurement yet" in (await client.get("/models")).text


def test_jobs_of_a_namespace_are_shown_to_who_may_list_its_pods() -> None:
    hidden = replace(MEASURED.measured[0], newest=(comparison(0, unit=GIB, times=1.0, namespace="team-b"),))
    models = replace(MEASURED, measured=(hidden, *MEASURED.measured[1:]))
    seen = MODELS.restrict(models, lambda right: right == pods_in("team-a"))
    assert [len(each.newest) for each in seen.measured] == [0, 15, 15]
    assert [each.coverage for each in seen.measured] == [each.coverage for each in models.measured]


@pytest.mark.browser
async def test_it_is_drawn_on_a_phone_in_the_dark(
    application: Any, serve_pages: Callable[[Any], str], open_page: Callable[..., Any]
) -> None:
    watched = await open_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    await watched.page.goto(serve_pages(application) + "/models")
    await watched.charts(2)
    assert await watched.page.evaluate("document.querySelectorAll('#measured-sizing .errorbar').length") == 30
    assert watched.errors == []
    assert await overflow(watched.page) <= 0


async def test_a_challenger_on_trial_shows_its_share_and_why_it_stopped(tmp_path: Path) -> None:
    challenger = RegisteredModel("sizing", "4", "d" * 64, "run", 1e9, ("challenger",), "passed", "3")
    stopped = Reason("CANARY_STOPPED", f"It failed on 3 of its last 9 questions {NASTY}")
    models = Models(others=(challenger,), canaries={challenger.model_version: 10}, refused=(stopped,))
    application = create_app(Settings(home=tmp_path), source=FixedSource({MODELS: models}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://127.0.0.1") as client:
        html = (await client.get("/models")).text
    assert "10 % of questions" in html
    assert "failed on 3 of its last 9 questions" in html
    assert NASTY not in html
