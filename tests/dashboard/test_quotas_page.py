"""The page of quotas: the tree with use, borrowing and waiting, a week of use, reservations on an axis; and who sees
which of them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient
from pages_source import FixedSource

from dashboard import quota_objects as objects
from kopt.cli.local.example.cluster import objects_at
from kopt.cluster.client.resources import KAIWO_RESERVATIONS
from kopt.cluster.objects.custom.reservation import standing_of
from kopt.controllers.overview.queue_standings import NEEDED, queue_standings
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data.access import CLUSTER_QUEUES, Right, pods_in
from kopt.dashboard.data.feed import Restricted
from kopt.dashboard.pages.quotas.data import QUOTAS, Quotas
from kopt.dashboard.pages.quotas.view import axis_of, picture, quotas_page

NOW_S = 1_900_000_000.0


async def html(quotas: Quotas) -> str:
    app = create_app(Settings(home=Path("/nowhere")), source=FixedSource({QUOTAS: quotas}))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1") as client:
        return (await client.get("/quotas")).text


async def test_the_page_says_quota_use_borrowing_waiting_and_history() -> None:
    text = await html(objects.quotas(NOW_S))
    assert "2 GPUs borrowed" in text
    assert "4 GPUs waited for" in text
    assert 'class="depth1"' in text
    assert "GPUs on average" in text
    assert "data-events" in text
    assert "/quotas/events" in text
    for state in ("Backfilled", "Scheduled", "75 %"):
        assert state in text


async def test_without_a_meter_there_is_no_history_and_the_page_says_why() -> None:
    text = await html(replace(objects.quotas(NOW_S), history=None))
    assert "meter.enabled" in text
    assert "last seven days" not in text


def reader(*rights: Right) -> Restricted:
    async def may(asked: Collection[Right]) -> Collection[Right]:
        return set(asked) & set(rights)

    return Restricted(FixedSource({QUOTAS: objects.quotas(NOW_S)}), may)


async def test_a_reader_sees_queues_and_reservations_of_namespaces_whose_pods_they_may_list() -> None:
    seen = await reader(pods_in("n")).latest(QUOTAS)
    assert [queue.name for queue in seen.tree.queues] == ["ai", "research"]
    assert [each.name for each in seen.tree.reservations] == ["n/research"]
    assert seen.history is not None
    assert set(seen.history.used) == set(seen.history.waited) == {"ai", "research"}
    assert seen.hides
    assert not seen.tree.skipped
    assert "secret" not in await html(seen)
    assert "other/hidden" not in await html(seen)


async def test_who_may_list_cluster_queues_sees_all_amounts_and_no_foreign_reservation() -> None:
    seen = await reader(CLUSTER_QUEUES).latest(QUOTAS)
    assert [queue.name for queue in seen.tree.queues] == ["ai", "research", "secret"]
    assert all(not queue.namespaces for queue in seen.tree.queues)
    assert not seen.tree.reservations
    assert not (await reader().latest(QUOTAS)).tree.queues


def test_bars_and_marks_share_one_scale() -> None:
    page = quotas_page(objects.quotas(NOW_S))
    ai, research, _ = page.rows
    assert ai.parts[0].width == pytest.approx(1000 * 14 / 18, abs=0.01)
    used, borrowed, waiting = research.parts
    assert (used.kind, borrowed.kind, waiting.kind) == ("used", "borrowed", "waiting")
    assert research.quota_x == pytest.approx(used.width, abs=0.02)
    assert borrowed.x == pytest.approx(used.x + used.width, abs=0.02)
    assert waiting.width == pytest.approx(1000 * 4 / 18, abs=0.01)


def test_reservations_lie_where_their_times_are() -> None:
    page = quotas_page(objects.quotas(NOW_S))
    axis = page.axis
    assert axis is not None
    past, coming = page.reservations[0].bars
    assert past.x + past.width < axis.now_x < coming.x
    assert coming.x == pytest.approx(1000 * (NOW_S + 86_400 - axis.start_s) / (axis.end_s - axis.start_s), abs=0.01)
    assert page.reservations[0].kept == "0 of 1"
    far = objects.reservation("n/far", NOW_S + 400 * 86_400)
    limited = axis_of([far], NOW_S)
    assert limited is not None
    assert limited.end_s <= NOW_S + 30 * 86_400
    assert axis_of([], NOW_S) is None


def test_hours_that_were_not_recorded_are_gaps_in_the_picture() -> None:
    drawn = picture([1000.0, None, 3000.0, 1000.0], [0.0, 4000.0, None, 0.0], 2000)
    assert drawn is not None
    assert drawn.line.count("M") == 2
    assert drawn.text.endswith("33 % above its quota; waited for 4 at most, in 33 % of the hours")
    assert drawn.waits.count("M") == 2
    assert picture([None, None], [None], 2000) is None


def test_the_example_cluster_has_a_tree_and_reservations() -> None:
    documents = objects_at(NOW_S)
    read = queue_standings({kind: documents[kind] for kind in NEEDED})
    assert {(queue.name, queue.depth) for queue in read.queues} == {("quality", 0), ("evaluation", 1), ("research", 0)}
    research = next(queue for queue in read.queues if queue.name == "research")
    assert research.use > 0
    assert research.pending_gpus > 0
    assert research.pending > 0
    assert research.namespaces == {"research", "vision"}
    standings = [standing_of(document) for document in documents[KAIWO_RESERVATIONS]]
    assert all(each.start_s and each.gpus == 8 and not each.is_refused for each in standings)
    assert len(standings[0].results) == 5
    page = quotas_page(Quotas(QueueTreeState(True, True, NOW_S, read.queues, tuple(standings))))
    assert all(row.bars for row in page.reservations)
