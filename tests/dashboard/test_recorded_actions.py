"""What components did to a workload, on the page of queues: from an audit log as the endpoint serves it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx
import pytest
from pages_source import FixedSource

from kopt.cli.local.example.actions import recorded_at
from kopt.core.audit import AuditChain, read_record
from kopt.core.recorded_actions import RecordedAction
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queued import Explanation, Queued, QueueState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app, pages_client
from kopt.dashboard.data.access import ALL_NAMESPACES, Right, pods_in
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.masking import ELSEWHERE
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Cluster, Snapshot
from kopt.dashboard.data.sources import Endpoint as PagesEndpoint
from kopt.dashboard.live import LiveSource
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.recorded import RECORDED, Recorded, RecordedActions
from kopt.serving.audit.service import AuditService
from kopt.serving.audit.table import AuditTable
from kopt.serving.endpoint.app import Endpoint
from kopt.serving.endpoint.app import create_app as endpoint_app
from kopt.serving.http.metrics import EndpointMetrics
from tests.dashboard import queue_objects as objects
from tests.dashboard.conftest import PAGES

NOW_S = 1_900_000_000.0
JOB = objects.queued("research/train", now_s=NOW_S)


def action(text: str, component: str = "lending", at_s: float = NOW_S - 600) -> RecordedAction:
    return RecordedAction(at_s, component, "event", "Evict", "Job", "train", text)


class Wire(httpx.ASGITransport):
    """Counts requests, and may never answer."""

    asked, hangs = 0, False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return await super().handle_async_request(request)


@asynccontextmanager
async def pages_over(table: AuditTable | None, folder: Path) -> AsyncIterator[tuple[LiveSource, Wire]]:
    endpoint = Endpoint({}, EndpointMetrics(), audit=None if table is None else AuditService(table))
    wire = Wire(endpoint_app(endpoint, manage=False))
    async with pages_client("http://endpoint", transport=wire) as client:
        yield LiveSource(FolderHistories(folder), client, None, url="http://endpoint", home=folder), wire


@pytest.fixture
def table(tmp_path: Path) -> AuditTable:
    result, chain = AuditTable(tmp_path / "audit.db"), AuditChain("a-process")
    names = [*["train"] * 9, "another"]
    about = [{"kind": "Job", "namespace": "research", "name": name} for name in names]
    contents = [
        {"at_s": NOW_S + n, "component": "lending", "kind": "event", "verb": "Evict", "text": f"{n}", "object": one}
        for n, one in enumerate(about)
    ]
    sealed = [chain.seal(content) for content in contents]
    result.append("", [(record, read_record(record)) for record in sealed])
    return result


async def test_the_newest_are_read_once_for_readers_that_ask_again_and_again(table: AuditTable, tmp_path: Path) -> None:
    async with pages_over(table, tmp_path) as (live, wire):
        of = (await live.latest(RECORDED)).of
        recorded = await of([JOB])
        assert [each.text for each in recorded.actions] == ["8", "7", "6", "5", "4"]
        asked = wire.asked
        assert await of([JOB]) == recorded
        assert wire.asked == asked > 0
    table.close()


async def test_an_audit_log_that_is_away_or_slow_is_a_sentence(tmp_path: Path) -> None:
    async with pages_over(None, tmp_path) as (live, wire):
        assert "does not answer" in (await (await live.latest(RECORDED)).of([JOB])).problem
        wire.hangs = True
        begun_s = time.monotonic()
        other = objects.queued("research/other", now_s=NOW_S)
        assert "does not answer" in (await (await live.latest(RECORDED)).of([other])).problem
        assert time.monotonic() - begun_s < 5


TEXT = "Evicted for team-b/chat on 3/4 GPUs, by batch/v1 and/or research/train; open/one lost least on nvidia.com/gpu."


async def test_whoever_may_not_list_all_pods_reads_no_names_of_other_namespaces() -> None:
    async def of(_: Sequence[Queued]) -> Recorded:
        return Recorded((action(TEXT),))

    async def text(recorded: RecordedActions, *held: str) -> str:
        rights = {pods_in(name) for name in ("research", *held)}
        (seen,) = (await RECORDED.restrict(recorded, rights.__contains__).of([JOB])).actions
        return seen.text

    recorded = RecordedActions(of, frozenset({"research", "team-b", "open"}))
    assert RECORDED.restrict(recorded, lambda right: right == pods_in(ALL_NAMESPACES)) is recorded
    assert await text(recorded, "open") == TEXT.replace("team-b/chat", ELSEWHERE)
    assert await text(recorded, "open", "team-b") == TEXT
    # Before it is known which there are, none is named.
    unread = await text(RecordedActions(of), "open")
    assert ("team-b" in unread, "research/train" in unread) == (False, True)
    # Rights are looked up beforehand, by asking whoever holds all of them.
    asked: list[Right] = []
    RECORDED.restrict(recorded, lambda right: bool(asked.append(right)) or True)
    assert {pods_in(name) for name in ("research", "team-b", "open")} < set(asked)


class Watched:
    """A cluster with one workload in its queue."""

    def __init__(self, *queued: Queued) -> None:
        self.queued = queued

    async def queue(self) -> QueueState:
        return QueueState(cluster=True, queued=self.queued)

    def overview(self) -> Overview:
        return Overview(cluster=True)


async def test_a_namespace_that_had_workloads_stays_known(tmp_path: Path) -> None:
    async with pages_client("http://127.0.0.1:9") as client:
        cluster = Watched(JOB)
        live = LiveSource(
            FolderHistories(tmp_path), client, None, url="", home=tmp_path, cluster=cast(Cluster, cluster)
        )
        assert (await live.latest(RECORDED)).namespaces is None
        await live.refresh(RECORDED)
        cluster.queued = (objects.queued("vision/embed"),)
        await live.refresh(RECORDED)
        assert (await live.latest(RECORDED)).namespaces == {"research", "vision"}


async def test_what_was_done_to_an_earlier_job_of_the_same_name_is_not_this_ones(tmp_path: Path) -> None:
    table, chain = AuditTable(tmp_path / "audit.db"), AuditChain("a-process")
    about = {"kind": "Job", "namespace": "research", "name": "train"}
    contents = [
        {"at_s": NOW_S + n, "component": "lending", "kind": kind, "verb": "Evict", "text": text, "object": about | uid}
        for n, (kind, text, uid) in enumerate(
            [
                ("event", "earlier", {"uid": "uid-before"}),
                ("event", "this", {"uid": JOB.owner_uid}),
                ("event", "unknown", {}),
                # The webhook's decisions have the uid of the question, as the pod is not there yet.
                ("decision", "decided", {"uid": "uid-question"}),
            ]
        )
    ]
    sealed = [chain.seal(content) for content in contents]
    table.append("", [(record, read_record(record)) for record in sealed])
    async with pages_over(table, tmp_path) as (live, _):
        of = (await live.latest(RECORDED)).of
        assert [each.text for each in (await of([JOB])).actions] == ["decided", "unknown", "this"]
        # One that is made anew is asked about anew.
        again = replace(JOB, uid="uid-again", owner_uid="uid-job-again")
        assert [each.text for each in (await of([again])).actions] == ["decided", "unknown"]
    table.close()


async def test_the_page_shows_it_where_a_workload_is_opened(tmp_path: Path) -> None:
    asked: list[str] = []

    async def recorded(queued: Sequence[Queued]) -> Recorded:
        asked.extend(each.full_name for each in queued)
        return Recorded((action("It is needed by <b>10:00</b>."),), problem="And no more is known.")

    state = QueueState(
        cluster=True,
        now_s=NOW_S,
        queued=(JOB,),
        explain=lambda several: {each.uid: Explanation("It waits.") for each in several},
    )
    snapshot = Snapshot({}, PagesEndpoint("http://127.0.0.1:8700"), NOW_S)
    source = FixedSource({SNAPSHOT: snapshot, QUEUE: state, RECORDED: RecordedActions(recorded)})
    transport = httpx.ASGITransport(create_app(Settings(home=tmp_path), source=source))
    async with httpx.AsyncClient(transport=transport, base_url=PAGES) as client:
        closed = (await client.get("/queue")).text
        text = (await client.get("/queue?job=research/train")).text
        await client.get("/queue?job=research/unknown")
    assert "by the audit log" not in closed
    assert asked == ["research/train"]
    assert "<b>lending</b> Evict Job train: It is needed by &lt;b&gt;10:00&lt;/b&gt;." in text
    assert "And no more is known." in text


def test_the_example_has_actions_and_a_second_start_repeats_none() -> None:
    entries = [read_record(record) for record in recorded_at(NOW_S, 0.0)]
    assert {entry.component for entry in entries} == {"lending", "staging"}
    assert all(entry.at_s <= NOW_S and entry.namespace and entry.summary for entry in entries)
    assert recorded_at(NOW_S, max(entry.at_s for entry in entries)) == []
