"""The page of queues: who waits and why, limits, what it says without a cluster; hostile names stay text."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from typing import Any

import httpx
import pytest
from pages_source import FixedSource
from playwright.async_api import Page

from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.queued import Explanation, Queued, QueueState, State
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Snapshot
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.view import (
    MOST_PENDING,
    MOST_QUEUES,
    MOST_RUNNING,
    QueueChoice,
    queue_page,
)
from tests.dashboard import queue_objects as objects
from tests.dashboard.conftest import HOSTILE, PAGES
from tests.dashboard.test_browser import CONTRAST, Watched, browser, open_page, overflow

__all__ = ["browser", "open_page"]
NOW_S = 1_900_000_000.0


def app_of(state: QueueState, tmp_path: Any) -> Any:
    snapshot = Snapshot({}, Endpoint("http://127.0.0.1:8700"), NOW_S)
    return create_app(Settings(home=tmp_path), source=FixedSource({SNAPSHOT: snapshot, QUEUE: state}))


@pytest.fixture
def shown(tmp_path: Any) -> Callable[..., Any]:
    """The text of the page over a state, with a query."""

    async def show(state: QueueState, **query: str) -> str:
        transport = httpx.ASGITransport(app_of(state, tmp_path))
        async with httpx.AsyncClient(transport=transport, base_url=PAGES) as client:
            reply = await client.get("/queue", params=query)
        assert reply.status_code == 200
        return reply.text

    return show


def words(html: str) -> str:
    """What a reader sees of it."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html)))


async def test_what_waits_has_its_position_its_reason_and_the_command(shown: Callable[..., Any]) -> None:
    html = await shown(objects.state(NOW_S))
    text = words(html)
    assert "3 for 4.5 GPUs" in text
    assert "2 on 10 GPUs" in text
    rows = [words(row) for row in html.split("<tr>")[1:] if "data-label" in row]
    assert len(rows) == 5
    urgent = rows[0]
    assert urgent.split()[0] == "1"
    for said in ("research/urgent", "priority 200", "urgent asks for more than is free.", "Nothing has to be done."):
        assert said in urgent
    assert "kopt why research/urgent" in urgent
    assert "waiting for 10 min" in urgent
    assert "1 more sentence" in urgent
    assert "0.5" in rows[1]
    assert "held by staging" in rows[2]
    assert "On GPUs that LendingPool inference lends." in rows[3]
    assert "kopt why" not in rows[3]
    assert "On GPUs of its queue." not in rows[4]


async def test_a_filter_takes_namespace_and_name(shown: Callable[..., Any]) -> None:
    text = words(await shown(objects.state(NOW_S), q="VISION/"))
    assert "2 of 5 workloads" in text
    assert "vision/embed" in text
    assert "research/urgent" not in text
    assert "Nothing matches" in await shown(objects.state(NOW_S), q="nobody")


async def test_one_workload_shows_its_whole_explanation(shown: Callable[..., Any]) -> None:
    html = await shown(objects.state(NOW_S), job="vision/pretrain")
    part = words(html.partition('id="selected"')[2].partition("</section>")[0])
    for said in (
        "Job vision/pretrain waits.",
        "pretrain asks for more than is free.",
        "pretrain was evicted before.",
        "Next: Nothing has to be done.",
        "do not read rayjobs",
        "kopt why vision/pretrain",
        "position 2",
    ):
        assert said in part
    # What runs is explained as well, where it is named.
    assert "Job research/sft waits." in words(await shown(objects.state(NOW_S), job="research/sft"))


async def test_a_name_that_is_none_is_answered_in_words(shown: Callable[..., Any]) -> None:
    text = words(await shown(objects.state(NOW_S), job="vision/gone"))
    assert "No GPU workload of this name waits or runs." in text
    assert "kopt why vision/gone" in text
    for bad in ("pretrain", "a/b/c", "/x", "a/", "a b/c", "x" * 600 + "/y"):
        html = await shown(objects.state(NOW_S), job=bad)
        assert "This address names no workload" in html
        assert 'id="selected"' not in html


async def test_it_says_what_is_missing_and_what_to_do(shown: Callable[..., Any]) -> None:
    assert "KUBECONFIG=~/.kube/config kopt up" in await shown(QueueState())
    assert "data-soon" in await shown(QueueState(cluster=True, ready=False))
    away = "The cluster does not answer, nothing of it has been read yet: connection refused"
    text = words(await shown(QueueState(cluster=True, now_s=NOW_S, problems=(away,))))
    assert away in text
    assert "None was read: see above" in text
    gone = frozenset({"workloads.kueue.x-k8s.io", "podgroups.scheduling.run.ai", "podgroups.scheduling.volcano.sh"})
    assert "Kueue is not installed here, and no pod asks for a GPU." in words(
        await shown(QueueState(cluster=True, now_s=NOW_S, missing=gone))
    )
    assert "Submit a job with a GPU" in words(await shown(QueueState(cluster=True, now_s=NOW_S)))
    pods = objects.queued("a/b", now_s=NOW_S, system=System.NONE, queue="no queue", position=1)
    assert "Kueue is not installed here: " in words(await shown(objects.state(NOW_S, pods, missing=gone)))


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_stay_text_and_one_word_of_a_command(name: str, shown: Callable[..., Any]) -> None:
    one = objects.queued(f"x/{name}", now_s=NOW_S, position=1, queue=name, message=name, holder=name)
    html = await shown(objects.state(NOW_S, one), q=name[:200])
    assert "<script>alert" not in html
    assert ">49" not in html
    (command,) = re.findall(r'<code id="why0-0" dir="auto">(.*?)</code>', html, re.DOTALL)
    assert shlex.split(unescape(command)) == ["kopt", "why", f"x/{name}"]


def test_of_thousands_the_first_are_explained_and_the_others_counted() -> None:
    asked: list[Queued] = []

    def explain(several: Sequence[Queued]) -> Mapping[str, Explanation]:
        asked.extend(several)
        return objects.explain(several)

    run = [objects.queued(f"a/run-{n}", State.RUNNING, NOW_S) for n in range(3000)]
    wait = [objects.queued(f"a/wait-{n}", now_s=NOW_S, position=n + 1) for n in range(3000)]
    others = [objects.queued(f"b/{n}", State.RUNNING, NOW_S, queue=f"queue-{n}") for n in range(50)]
    view = queue_page(objects.state(NOW_S, *run, *wait, *others, explain=explain))
    assert [one.name for one in asked] == [f"wait-{n}" for n in range(MOST_PENDING)]
    card = view.cards[0]
    assert (card.running, card.pending) == (3000, 3000)
    assert len(card.rows) == MOST_PENDING + MOST_RUNNING
    assert card.omitted == 6000 - len(card.rows)
    assert len(view.cards) == MOST_QUEUES
    assert view.omitted_queues == 51 - MOST_QUEUES
    found = queue_page(objects.state(NOW_S, *run, *wait), QueueChoice("wait-2999"))
    assert [row.queued.position for row in found.cards[0].rows] == [3000]


def test_queues_in_which_something_waits_come_first() -> None:
    run = objects.queued("a/run", State.RUNNING, NOW_S, queue="alpha")
    wait = objects.queued("a/wait", now_s=NOW_S, queue="omega", position=1)
    assert [card.name for card in queue_page(objects.state(NOW_S, run, wait)).cards] == ["omega", "alpha"]


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_fits_a_phone_and_can_be_read(
    scheme: str, tmp_path: Any, open_page: Callable[..., Any], serve_pages: Callable[[Any], str]
) -> None:
    long = "x" * 240
    several = [*objects.state(NOW_S).queued, objects.queued(f"n/{long}", now_s=NOW_S, queue=long, position=3)]
    address = serve_pages(app_of(objects.state(NOW_S, *several), tmp_path))
    watched: Watched = await open_page(color_scheme=scheme, viewport={"width": 360, "height": 800})
    page: Page = watched.page
    for path in ("/queue", f"/queue?job=n/{long}"):
        await page.goto(address + path)
        assert await overflow(page) <= 0
        assert await page.evaluate(CONTRAST) == []
    assert watched.errors == []
