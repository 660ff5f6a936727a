"""Questions of readers on the page of capacity: one at a time of each login, in turn, for who may see pools."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from pages_source import FixedSource
from playwright.async_api import expect

from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.capacity.data import CAPACITY
from kopt.dashboard.pages.capacity.questions import (
    KEEP_S,
    MOST_QUEUED,
    Answered,
    PoolOffer,
    Progress,
    QuestionError,
    Questions,
    read_question,
)
from kopt.simulator.what_if.jobs import WhatIfError
from kopt.simulator.what_if.purchase import PurchaseQuestion, purchase_what_if
from tests.capacity.made_capacity import DAY_S, END_S, answered, runs, state
from tests.dashboard.conftest import serve_pages
from tests.dashboard.test_browser import CONTRAST, browser, open_page, overflow
from tests.dashboard.test_capacity_page import Platform
from tests.dashboard.test_login import KnownUsers

__all__ = ["browser", "open_page", "serve_pages"]
ADDRESS = "http://127.0.0.1:8701"
OFFERS = (PoolOffer("h100", 16, "NVIDIA-H100-80GB-HBM3", 2.0),)
MORE = PurchaseQuestion("h100", 16, 8, 2.0)


class Desk:
    """Questions whose replays wait for ``gate``; ``replayed`` are those that began, ``most`` how many at once."""

    def __init__(self) -> None:
        self.gate, self.now_s, self.problem = asyncio.Event(), END_S, ""
        self.replayed, self.running, self.most = list[PurchaseQuestion](), 0, 0
        self.questions = Questions(self.replay, lambda: self.now_s)

    async def replay(self, question: PurchaseQuestion) -> Answered:
        self.replayed.append(question)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.gate.wait()
        self.running -= 1
        return (None, self.problem) if self.problem else (answered(MORE), "")

    async def settle(self) -> None:
        self.gate.set()
        while self.questions._queue:
            await asyncio.sleep(0)


def more(gpus: int) -> PurchaseQuestion:
    return replace(MORE, buy_gpus=gpus)


async def test_a_login_has_one_question_at_a_time_and_they_come_in_turn() -> None:
    desk = Desk()
    for number, login in enumerate("abc", start=1):
        desk.questions.ask(login, more(number))
    await asyncio.sleep(0)
    with pytest.raises(QuestionError, match="still being replayed"):
        desk.questions.ask("a", more(9))
    last = desk.questions.of("c")
    assert last is not None
    assert (last.progress, desk.questions.ahead_of(last)) == (Progress.QUEUED, 2)
    await desk.settle()
    assert ([each.buy_gpus for each in desk.replayed], desk.most) == ([1, 2, 3], 1)
    assert last.answer is not None
    desk.questions.ask("a", more(9))
    await desk.settle()
    assert len(desk.replayed) == 4


async def test_few_questions_wait_and_the_same_one_is_replayed_once() -> None:
    desk = Desk()
    for number in range(MOST_QUEUED):
        desk.questions.ask(f"login-{number}", more(number + 1))
    desk.questions.ask("same", more(1))
    with pytest.raises(QuestionError, match="8 questions of others come first"):
        desk.questions.ask("late", more(99))
    assert desk.questions.of("late") is None
    await desk.settle()
    desk.questions.ask("late", more(1))
    assert len(desk.replayed) == MOST_QUEUED
    desk.now_s += KEEP_S
    assert desk.questions.of("same") is None
    desk.questions.ask("late", more(1))
    await desk.settle()
    assert len(desk.replayed) == MOST_QUEUED + 1, "an old answer is replayed anew"


async def test_what_failed_is_said_and_may_be_asked_again() -> None:
    desk = Desk()
    desk.problem = "No job is recorded."
    desk.questions.ask("a", MORE)
    await desk.settle()
    asked = desk.questions.of("a")
    assert asked is not None
    assert (asked.progress, asked.problem) == (Progress.DONE, "No job is recorded.")
    desk.questions.ask("a", MORE)
    await desk.settle()
    assert len(desk.replayed) == 2


async def test_a_question_waits_for_an_advised_purchase_that_is_being_replayed() -> None:
    platform = Platform()
    platform.gate = asyncio.Event()
    await platform.reader.refresh()
    while not platform.questions:
        await asyncio.sleep(0.01)
    data = await platform.reader.latest()
    assert data.questions is not None
    data.questions.ask("a", MORE)
    await asyncio.sleep(0.05)
    assert len(platform.questions) == 1
    platform.gate.set()
    assert platform.reader.background.task is not None
    await platform.reader.background.task
    while (asked := data.questions.of("a")) is None or asked.progress is not Progress.DONE:
        await asyncio.sleep(0.01)
    assert platform.questions[-1] == MORE
    assert asked.answer == answered(MORE)


def day(ago: float) -> str:
    return datetime.fromtimestamp(END_S - ago * DAY_S, UTC).strftime("%Y-%m-%d")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"pool": "none"}, "no such pool"),
        ({"gpus": "0"}, "whole number"),
        ({"gpus": "1e3"}, "whole number"),
        ({"gpus": "٣"}, "whole number"),
        ({"gpus": "999999"}, "whole number"),
        ({"from": "tomorrow"}, "2026-01-31"),
        ({"from": day(-30)}, "one of the last 90"),
        ({"from": day(0)}, "a day ago at the latest"),
        ({"from": day(120)}, "one of the last 90"),
        ({str(number): "" for number in range(9)}, "more fields"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(fields: dict[str, str], word: str) -> None:
    with pytest.raises(QuestionError, match=word):
        read_question(urlencode({"pool": "h100", "gpus": "8", **fields}), OFFERS, END_S)


@given(st.text(max_size=200))
def test_any_form_is_a_question_or_refused(text: str) -> None:
    with contextlib.suppress(QuestionError):
        assert read_question(text, OFFERS, END_S).buy_gpus > 0


def test_from_a_day_on_only_jobs_that_were_submitted_since_are_replayed() -> None:
    question = read_question(urlencode({"pool": "h100", "gpus": "8", "from": day(5)}), OFFERS, END_S)
    assert question.from_s is not None
    since, ever = purchase_what_if(runs(), question), purchase_what_if(runs(), MORE)
    assert 0 < since.check.jobs < ever.check.jobs
    assert "before that day are not replayed" in " ".join(since.assumptions)
    with pytest.raises(WhatIfError, match="submitted since then"):
        purchase_what_if(runs(), replace(question, from_s=END_S + DAY_S))


async def replay_here(question: PurchaseQuestion) -> Answered:
    return await asyncio.to_thread(purchase_what_if, runs(), question), ""


def app_of(home: Path, questions: Questions, *, with_login: bool = False) -> Any:
    login = Login(KnownUsers(), Sessions(Fernet.generate_key().decode(), secure=False), "kopt") if with_login else None
    data = replace(state("h100"), questions=questions)
    source = FixedSource({SNAPSHOT: Snapshot({}, Endpoint(ADDRESS), END_S), CAPACITY: data})
    return create_app(Settings(home=home), source=source, login=login)


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS, headers={"origin": ADDRESS})


async def test_a_form_is_answered_on_the_page_of_its_login_alone(tmp_path: Path) -> None:
    app = app_of(tmp_path, Questions(replay_here, lambda: END_S), with_login=True)
    form = {"pool": "h100", "gpus": "8"}
    async with client_of(app) as root, client_of(app) as tenant:
        await root.post("/login", data={"token": "token-of-root"})
        await tenant.post("/login", data={"token": "token-of-a"})
        assert (await tenant.post("/capacity", data=form)).status_code == 403
        assert 'id="question"' not in (await tenant.get("/capacity")).text
        foreign = await root.post("/capacity", data=form, headers={"origin": "https://elsewhere.example"})
        assert foreign.status_code == 403
        refused = await root.post("/capacity", data=form | {"gpus": "none"})
        assert (refused.status_code, "GPUs are a whole number" in refused.text) == (200, True)
        sent = await root.post("/capacity", data=form)
        assert (sent.status_code, sent.headers["location"]) == (303, "/capacity#question")
        text = ""
        while "kept for six hours" not in text:
            await asyncio.sleep(0.05)
            text = (await root.get("/capacity")).text
        part = text.partition('id="question"')[2]
        for cell in answered(MORE).figure("mean wait").cells():
            assert f">{cell}<" in part
    async with client_of(app) as nobody:
        assert (await nobody.post("/capacity", data=form)).status_code == 401


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_a_reader_asks_and_reads_the_answer(
    tmp_path: Path,
    serve_pages: Callable[[Any], str],
    open_page: Callable[..., Any],
    scheme: str,
    width: int,
) -> None:
    watched = await open_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    page = watched.page
    await page.goto(f"{serve_pages(app_of(tmp_path, Questions(replay_here, lambda: END_S)))}/capacity")
    await page.locator("#gpus").fill("8")
    await page.get_by_role("button", name="Replay").click()
    await expect(page.locator("#question")).to_contain_text("kept for six hours", timeout=30_000)
    assert await page.evaluate(CONTRAST) == []
    assert await overflow(page) <= 0
    assert watched.errors == []
