"""The page of jobs over a running endpoint: timelines, safe or not and why, work at risk; hostile logs stay text."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, expect

from kopt.core.workload.checkpoint import JobState, JobStatus
from kopt.dashboard.pages.jobs.data import JOBS, Jobs
from kopt.dashboard.pages.jobs.view import MOST_CHANGES, WIDTH, jobs_page
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.contract.checkpoint_answers import ChangeOut, JobOut
from kopt.serving.endpoint.app import create_app as endpoint_app
from tests.dashboard.conftest import HOSTILE_NAME, Platform
from tests.dashboard.test_browser import CONTRAST, Watched, address, browser, open_page, overflow

__all__ = ["address", "browser", "open_page"]
NOW = 1_790_000_000.0


def training(saves: int, now_s: float, *, ends: bool = True) -> list[dict[str, Any]]:
    """Two hours of steps and saves with told ends up to now; without ``ends`` the last write is open."""
    at = now_s - 7200
    step_s = 7200 / (saves * 10 + saves * 3)
    found: list[dict[str, Any]] = [{"text": "Loading dataset from cache", "at": at}]
    for save in range(1, saves + 1):
        for step in range(save * 10 - 9, save * 10 + 1):
            at += step_s
            found.append({"text": f"step {step}/400 loss 1.2 lr 0.0001", "at": at})
        at += step_s
        found.append({"text": f"Saving checkpoint to /out/checkpoint-{save * 10} ...", "at": at})
        at += 2 * step_s
        name = HOSTILE_NAME if save == 4 else "to /out"
        found.append({"text": f"successfully saved checkpoint at iteration {save * 10} {name}", "at": at})
    return found if ends else found[:-1]


@pytest.fixture
async def followed(platform: Platform) -> Platform:
    """Three jobs are followed: one is safe, one writes, one has a hostile name and no checkpoint."""
    platform.endpoint.service(CheckpointService).refresh()
    now_s = time.time()
    jobs = [
        {"job": "vision/pretrain", "lines": training(8, now_s), "gpus": 8},
        {"job": "nlp/finetune", "lines": training(4, now_s, ends=False), "gpus": 2},
        {"job": f"evil/{HOSTILE_NAME}", "lines": ["step 1 loss 2.0"], "source": "p/c", "first": 5},
    ]
    transport = httpx.ASGITransport(endpoint_app(platform.endpoint, manage=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://endpoint") as client:
        for job in jobs:
            reply = await client.post("/v1/checkpoint", json=job, headers={"x-kopt-deadline-ms": "30000"})
            assert reply.status_code == 200, reply.text
            assert not reply.json()["fallback"]
    await platform.live.refresh(JOBS)
    return platform


async def test_jobs_are_shown_with_their_timelines_and_what_is_at_risk(
    followed: Platform, pages: httpx.AsyncClient
) -> None:
    html = (await pages.get("/jobs?hours=6")).text
    assert html.count("<article") == 3
    assert re.search(r"[\d.]+ GPU-(hours|minutes) \([\d.]+", html)
    one = (await pages.get("/jobs?q=vision")).text
    assert one.count("<article") == 1
    # One end cannot be read: that write lasts until the next one begins, which is another.
    assert one.count('<rect class="state CKPT_WRITING"') == 8
    assert "safe to kill" in one
    assert "of step 80" in one
    assert "line " in one
    writing = (await pages.get("/jobs?q=nlp")).text
    assert "not safe to kill" in writing
    assert "is being written" in writing
    assert "4 lines never came" in (await pages.get("/jobs?q=evil")).text


async def test_hostile_names_and_lines_stay_text(followed: Platform, pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/jobs")).text
    assert HOSTILE_NAME not in html
    assert "&lt;script&gt;" in html


async def test_an_endpoint_that_is_down_leaves_what_was_known(followed: Platform, pages: httpx.AsyncClient) -> None:
    followed.down[0] = True
    await followed.live.refresh(JOBS)
    html = (await pages.get("/jobs")).text
    assert "from the last time" in html
    assert html.count("<article") == 3


async def test_before_any_job_is_followed_the_page_says_how(pages: httpx.AsyncClient) -> None:
    html = (await pages.get("/jobs")).text
    assert "kopt agent logtail" in html
    assert "kopt logs classify --follow" in html
    assert "Nothing matches" in (await pages.get("/jobs?q=x")).text or "No job is followed" in html


def view(*changes: ChangeOut) -> JobOut:
    status = JobStatus(JobState.TRAIN).to_dict()
    return JobOut(**status, job="a/b", heard_at=NOW, gpus=1.0, lines=3, missed={}, changes=changes)


def test_a_timeline_ends_now_and_shows_writes_of_seconds_in_a_week() -> None:
    changes = [
        ChangeOut(NOW - 600_000, JobState.TRAIN, False, None, ""),
        ChangeOut(NOW - 300_000, JobState.CKPT_WRITING, False, 5, "Saving"),
        ChangeOut(NOW - 299_999, JobState.TRAIN, True, None, ""),
    ]
    (card,) = jobs_page(Jobs((view(*changes),), NOW), hours=168).cards
    assert max(piece.x + piece.width for piece in card.pieces) == pytest.approx(WIDTH)
    assert sum(piece.width for piece in card.pieces if piece.state == "TRAIN") == pytest.approx(WIDTH, rel=1e-3)
    assert card.pieces[-1].state == "CKPT_WRITING", "drawn last, above the rest"
    assert card.pieces[-1].width >= 2
    assert "line 5: Saving" in card.pieces[-1].tooltip
    (hour,) = jobs_page(Jobs((view(*changes),), NOW), hours=1).cards
    assert [(piece.state, piece.x, piece.width) for piece in hour.pieces] == [("TRAIN", 0, WIDTH)]
    assert hour.from_s == NOW - 3600


def test_times_in_disorder_or_to_come_draw_nothing_outside() -> None:
    changes = [
        ChangeOut(NOW + one, JobState.TRAIN if one % 20 else JobState.CKPT_WRITING, False, None, "")
        for one in (-100, 50, -70, -200, 900, -10)
    ]
    (card,) = jobs_page(Jobs((view(*changes),), NOW)).cards
    for piece in card.pieces:
        assert 0 <= piece.x <= piece.x + piece.width <= WIDTH + 1e-6
    empty = jobs_page(Jobs((replace(view(), changes=()),), NOW)).cards[0]
    assert empty.pieces == ()


def test_only_the_newest_changes_are_listed() -> None:
    changes = [ChangeOut(NOW - 100 + n, JobState.TRAIN if n % 2 else JobState.EVAL, False, None, "") for n in range(40)]
    (card,) = jobs_page(Jobs((view(*changes),), NOW)).cards
    assert card.changes == tuple(reversed(changes[-MOST_CHANGES:]))


@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
async def test_the_page_in_a_browser(
    followed: Platform, address: str, open_page: Callable[..., Any], scheme: str, width: int
) -> None:
    watched: Watched = await open_page(color_scheme=scheme, viewport={"width": width, "height": 900})
    page: Page = watched.page
    await page.goto(f"{address}/jobs?hours=6")
    assert await overflow(page) <= 0
    colours = await page.evaluate(
        "['TRAIN', 'CKPT_WRITING', 'CKPT_DONE'].map("
        "s => getComputedStyle(document.querySelector('.timeline .' + s)).fill)"
    )
    assert len(set(colours)) == 3
    said = await page.locator(".timeline .CKPT_WRITING title").first.text_content()
    assert re.search(r"line [\d,]+: Saving checkpoint", said or "")
    await page.locator("summary").first.click()
    await expect(page.locator("details[open] table")).to_be_visible()
    assert await overflow(page) <= 0
    assert await page.evaluate(CONTRAST) == []
    assert watched.errors == []
    await page.goto(f"{address}/jobs?q=nothing-like-it")
    await expect(page.locator("section.empty")).to_be_visible()
    assert watched.hosts == {"127.0.0.1"}


@pytest.mark.browser
async def test_a_new_state_comes_in_without_a_reload(
    followed: Platform, address: str, open_page: Callable[..., Any]
) -> None:
    page: Page = (await open_page()).page
    await page.goto(f"{address}/jobs?q=nlp")
    await expect(page.locator(".badge.refused")).to_be_visible()
    known = await followed.live.latest(JOBS)
    safe = [replace(one, safe=True, reason="All is saved.") for one in known.jobs]
    followed.live.reader(JOBS)._latest = replace(known, jobs=tuple(safe))
    await expect(page.locator(".badge.ok")).to_be_visible(timeout=60_000)


def _safe(heard_s_ago: float, **known: Any) -> JobOut:
    status = JobStatus(
        JobState.TRAIN, safe=True, last_durable_step=40, seconds_since_durable=0.0, evidence=True, **known
    ).to_dict()
    changes = (ChangeOut(NOW - 4000, JobState.TRAIN, True, None, ""),)
    return JobOut(**status, job="a/b", heard_at=NOW - heard_s_ago, gpus=1.0, lines=3, missed={}, changes=changes)


def test_what_was_heard_of_long_ago_is_not_safe_to_kill_now() -> None:
    page = jobs_page(Jobs((_safe(38 * 60.0, last_durable_at_s=NOW - 40 * 60.0),), NOW))
    (card,) = page.cards
    assert (page.safe, page.stale) == (0, 1)
    assert (card.safe, card.stale) == (False, "38 min")
    assert card.durable == "of step 40, 40 min ago"
    assert max(piece.x + piece.width for piece in card.pieces) < 0.6 * WIDTH, "not drawn until now"
    fresh = jobs_page(Jobs((_safe(20.0, last_durable_at_s=NOW - 60.0),), NOW))
    assert (fresh.safe, fresh.stale, fresh.cards[0].safe, fresh.cards[0].stale) == (1, 0, True, "")


def test_a_log_without_a_clock_is_not_now() -> None:
    (card,) = jobs_page(Jobs((_safe(20.0),), NOW)).cards
    assert card.durable == "of step 40"
    assert card.clockless


async def test_an_ended_agent_is_told_on_the_page(
    followed: Platform, pages: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await followed.live.latest(JOBS)

    async def later() -> Jobs:
        return replace(jobs, now_s=jobs.now_s + 38 * 60)

    monkeypatch.setattr(followed.live.reader(JOBS), "latest", later)
    html = (await pages.get("/jobs?q=vision")).text
    assert "last report 38 min old" in html
    assert ">safe to kill</span>" not in html
