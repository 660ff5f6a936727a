"""``GET /v1/why/…`` and what open pages hear of: whose rights count, what is named, what is said where nothing is."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from pages_source import FixedSource

from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import Binding, Cause, Change, ChangeKind, Diagnosis, StartEstimate
from kopt.core.scheduling.gpu_map import GpuMap
from kopt.core.scheduling.overview import Overview
from kopt.core.scheduling.queue_standing import QueueTreeState
from kopt.core.scheduling.queued import Explanation, Queued, QueueState
from kopt.core.settings import Settings
from kopt.dashboard.app import create_app
from kopt.dashboard.data import access
from kopt.dashboard.data.access import pods_in
from kopt.dashboard.data.histories import FolderHistories
from kopt.dashboard.data.masking import ELSEWHERE, masked
from kopt.dashboard.data.snapshot import SNAPSHOT
from kopt.dashboard.data.sources import Endpoint, Nodes, Snapshot
from kopt.dashboard.events import ALIVE_S, ChangeStreams
from kopt.dashboard.live import LiveSource
from kopt.dashboard.login.authority import User
from kopt.dashboard.login.routes import Login
from kopt.dashboard.login.sessions import Sessions
from kopt.dashboard.pages.queue.data import QUEUE
from kopt.dashboard.pages.queue.view import queue_page
from kopt.serving.client.client import AsyncPredictionClient
from tests.dashboard import queue_objects as objects
from tests.dashboard.test_login import KnownUsers

ADDRESS = "http://127.0.0.1:8701"
NOW_S = 1_900_000_000.0


def diagnosis(queued: Queued) -> Diagnosis:
    """It waits for a job of team-b's."""
    return Diagnosis(
        queued.full_name,
        "Kueue",
        (Cause(Binding.QUOTA_IN_USE, "It needs 2 GPUs, and 1 is free.", 2, 1, "GPUs", "research"),),
        (
            Change(ChangeKind.WAIT, "Wait: it fits when team-b/train has ended.", names=("team-b/train",)),
            Change(ChangeKind.FEWER_GPUS, "Request 1 GPU instead of 2.", before="2", after="1", verified=True),
        ),
        StartEstimate(720.0, 2460.0, 100, Reason("RUN_TIME_UNKNOWN", "The run time of team-b/eval is not known.")),
        uid=queued.uid,
    )


def explain(several: Sequence[Queued]) -> Mapping[str, Explanation]:
    result = {}
    for queued in several:
        known = diagnosis(queued)
        document = {"summary": f"{queued.kind} {queued.full_name} waits.", "diagnosis": known.to_dict()}
        sentence = f"It asks for 2 nvidia.com/gpu. Ahead: team-b/train, {queued.full_name}."
        result[queued.uid] = Explanation("It waits.", (sentence,), "", (), known, document)
    return result


STATE = objects.state(
    NOW_S,
    objects.queued("team-a/train", now_s=NOW_S, position=1),
    objects.queued("team-b/train", now_s=NOW_S, position=2),
    explain=explain,
)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    """The answer of an address, as somebody who shows a token; None where nobody logs in."""

    async def get(path: str, token: str | None = None, state: QueueState = STATE, users: Any = None) -> httpx.Response:
        source = FixedSource({SNAPSHOT: Snapshot({}, Endpoint(ADDRESS), NOW_S), QUEUE: state})
        known = users or KnownUsers()
        login = None if token is None else Login(known, Sessions(Fernet.generate_key().decode(), secure=False), "kopt")
        app = create_app(Settings(home=tmp_path), source=source, login=login)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, headers=headers) as client:
            return await client.get(path)

    return get


@pytest.mark.parametrize("kind", ["job", "Job", "jobs", "jobs.batch"])
async def test_it_answers_as_the_command_does(ask: Callable[..., Any], kind: str) -> None:
    reply = await ask(f"/v1/why/team-a/{kind}/train")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    document = reply.json()
    assert document["diagnosis"]["causes"][0]["code"] == "QUOTA_IN_USE"
    assert document["diagnosis"]["start"]["p90_s"] == 2460.0
    assert (await ask("/v1/why/team-a/workload/job-train")).json() == document


async def test_a_name_that_is_none_is_answered_with_the_nearest(ask: Callable[..., Any]) -> None:
    reply = await ask("/v1/why/team-a/job/trian")
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"
    assert "did you mean team-a/job/train?" in reply.json()["detail"]
    assert "kopt queue" in (await ask("/v1/why/x/job/" + "y" * 200)).json()["detail"]
    assert (await ask("/v1/why/x/job/" + "y" * 300)).status_code == 404
    assert (await ask("/v1/why/team-a/pod/train")).status_code == 404


async def test_without_a_cluster_it_says_what_is_missing(ask: Callable[..., Any]) -> None:
    reply = await ask("/v1/why/team-a/job/train", state=QueueState())
    assert (reply.status_code, reply.json()["title"]) == (503, "No cluster")
    reply = await ask("/v1/why/team-a/job/train", state=QueueState(cluster=True, ready=False))
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")


async def test_only_who_may_list_its_pods_is_answered(ask: Callable[..., Any]) -> None:
    path = "/v1/why/team-a/job/train"
    for token in ("", "guessed"):
        reply = await ask(path, token)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")
    assert (await ask(path, "token-of-a")).status_code == 200
    refused = await ask(path, "token-of-b")
    assert refused.status_code == 404
    # Not even that there is one.
    assert refused.json()["detail"] == (await ask("/v1/why/team-a/job/trayn", "token-of-b")).json()["detail"].replace(
        "trayn", "train"
    )
    assert (await ask(path, "token-of-root")).status_code == 200
    assert (await ask(path, "token-of-a", users=KnownUsers(away=True))).status_code == 503


async def test_workloads_of_others_are_not_named(ask: Callable[..., Any]) -> None:
    own, every = [await ask("/v1/why/team-a/job/train", token) for token in ("token-of-a", "token-of-root")]
    assert "team-b" not in own.text
    assert own.json()["diagnosis"]["changes"][0]["message"] == f"Wait: it fits when {ELSEWHERE} has ended."
    assert "nvidia.com/gpu" not in own.json()["diagnosis"]["causes"][0]["message"]
    assert "team-b/train" in every.text


async def test_the_page_shows_cause_change_and_start_and_names_nobody_elses() -> None:
    restricted = QUEUE.restrict(STATE, lambda right: right == pods_in("team-a"))
    (card,) = queue_page(restricted).cards
    (row,) = card.rows
    assert (row.code, row.why) == ("QUOTA_IN_USE", "It needs 2 GPUs, and 1 is free.")
    assert row.change == "It would run with this change: Request 1 GPU instead of 2."
    assert row.start is not None
    assert (row.start.p50, row.start.p90) == ("12 min", "41 min")
    assert ELSEWHERE in row.start.note
    explanation = restricted.explain([row.queued])[row.queued.uid]
    assert explanation.sentences == (f"It asks for 2 nvidia.com/gpu. Ahead: {ELSEWHERE}, team-a/train.",)
    # Rights are asked for alone, whatever there is to see.
    assert QUEUE.restrict(STATE, lambda right: True) is STATE


async def test_the_page_says_so_in_words(ask: Callable[..., Any]) -> None:
    html = (await ask("/queue")).text
    for said in ("QUOTA_IN_USE", "Request 1 GPU instead of 2.", "in 12 min", "nine of ten: in 41 min"):
        assert said in html
    selected = (await ask("/queue?job=team-a/train")).text.partition('id="selected"')[2]
    assert "Wait: it fits when team-b/train has ended." in selected.partition("</section>")[0]


@given(text=st.text(max_size=60), names=st.lists(st.sampled_from(("team-a/x", "team-b/y-1", "b/c.d")), max_size=3))
def test_masking_leaves_no_hidden_name_and_nothing_else_out(text: str, names: list[str]) -> None:
    sentence = " ".join([text.replace("/", ""), *names])
    hidden = masked({"deep": [(sentence, 1.5, None, ChangeKind.WAIT)]}, {"team-b", "b"}.__contains__)
    ((said, number, nothing, kind),) = hidden["deep"]
    assert (number, nothing, kind) == (1.5, None, ChangeKind.WAIT)
    assert isinstance(kind, ChangeKind)
    assert "team-b/y-1" not in said.split()
    assert "b/c.d" not in said.split()
    assert said.count("team-a/x") == sentence.count("team-a/x")


class ChangingCluster:
    """Has one job more each time that it is asked after a change."""

    def __init__(self) -> None:
        self.happened, self.jobs = asyncio.Event(), 0

    async def queue(self) -> QueueState:
        return objects.state(NOW_S, *(objects.queued(f"a/{number}") for number in range(self.jobs)))

    async def changed(self) -> None:
        await self.happened.wait()
        self.happened.clear()

    async def nodes(self) -> Nodes:
        return Nodes()

    def overview(self) -> Overview:
        return Overview()

    async def queue_tree(self) -> QueueTreeState:
        return QueueTreeState()

    async def queue_tree_changed(self) -> None:
        await asyncio.Event().wait()

    def gpus(self) -> GpuMap:
        return GpuMap()

    async def gpus_changed(self) -> None:
        await asyncio.Event().wait()

    async def run(self) -> None: ...

    async def close(self) -> None: ...


async def test_an_open_page_hears_at_once_that_something_has_changed(tmp_path: Path) -> None:
    cluster = ChangingCluster()
    async with AsyncPredictionClient("http://127.0.0.1:9") as client:
        live = LiveSource(FolderHistories(tmp_path), client, None, url="", home=tmp_path, cluster=cluster)
        following = asyncio.create_task(live.follow())
        streams = ChangeStreams(most=1, stream_s=60.0)
        response: Any = streams.of(live, QUEUE)
        lines = response.body_iterator
        assert await anext(lines) == "retry: 5000\n\n"
        heard = asyncio.create_task(anext(lines))
        # A second one finds no room, and asks every now and then.
        assert streams.of(live, QUEUE).status_code == 503
        cluster.jobs = 2
        cluster.happened.set()
        async with asyncio.timeout(ALIVE_S / 2):
            assert await heard == "data: changed\n\n"
        assert len((await live.latest(QUEUE)).queued) == 2
        await lines.aclose()
        assert streams.of(live, QUEUE).status_code == 200
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_pages_that_are_not_followed_do_not_listen(ask: Callable[..., Any]) -> None:
    assert 'data-events="/queue/events"' in (await ask("/queue")).text
    assert "data-events" not in (await ask("/models")).text
    users = dataclasses.replace(KnownUsers(), held={"ann": (pods_in(access.ALL_NAMESPACES),)})
    users.tokens["token-of-a"] = User("ann")
    # Without a session there is nothing to listen to.
    assert (await ask("/queue/events", "token-of-a", users=users)).status_code == 303
