"""What the endpoint keeps, with two replicas on one database: the answers of one process, through kills and outages."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from postgres_server import PASSWORD, PostgresServer, postgres

from kopt.core.settings import Settings, SettingsError
from kopt.core.workload.checkpoint import JobState
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.registry.loading import load_predictor
from kopt.models.registry.registry import CHAMPION
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.database.opening import Location, open_database
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.demand.monitoring import PredictionTable, Row
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.pairwise.table import PairTable, Scope
from kopt.serving.sizing.table import SizeTable, StoredEvidence
from tests.serving.conftest import URL, MemorySource, no_store

__all__ = ["postgres"]
NOW = 1_790_000_000.0
JOB = "team/train-1"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Of an endpoint whose database holds nothing yet."""
    if request.param == "sqlite":
        return Settings(home=tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres")
    return Settings(home=tmp_path, database_url=server.new_database())


def where(settings: Settings, name: str = "any") -> Location:
    return settings.database_url or settings.home / f"{name}.db"


@pytest.fixture(scope="module")
def shipped() -> CheckpointPredictor:
    model = load_predictor("checkpoint", "shipped")
    assert isinstance(model, CheckpointPredictor)
    return model


class Clock:
    """Tells the time of the last line that was sent."""

    now_s = NOW

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Line = tuple[str, float]
Build = Callable[[Settings], Endpoint]


@pytest.fixture
def build(source: MemorySource, shipped: CheckpointPredictor, clock: Clock) -> Iterator[Build]:
    """Builds replicas on one clock."""
    started: list[Endpoint] = []

    def replica(settings: Settings) -> Endpoint:
        parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"checkpoint": lambda: shipped})
        endpoint = assemble(settings, parts)
        endpoint.service(CheckpointService)._clock = clock
        endpoint.start()
        endpoint.service(CheckpointService).refresh()
        started.append(endpoint)
        return endpoint

    yield replica
    for endpoint in started:
        endpoint.stop()


@asynccontextmanager
async def served(endpoint: Endpoint) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers={DEADLINE_HEADER: "60000"}) as client:
        yield client


def log(saves: int = 4) -> list[Line]:
    """Ten steps and a save of three seconds, and so on, each line with its time."""
    at_s, lines = NOW, [("Loading dataset from cache", NOW)]
    for save in range(1, saves + 1):
        for step in range(save * 10 - 9, save * 10 + 1):
            at_s += 1.0
            lines.append((f"step {step}/400 loss 1.{step:03d} lr 0.0001", at_s))
        at_s += 0.2
        lines.append((f"Saving checkpoint to /out/checkpoint-{save * 10} ...", at_s))
        at_s += 3.0
        text = f"successfully saved checkpoint at iteration {save * 10} to /out/checkpoint-{save * 10}"
        lines.append((text, at_s))
    return lines


async def send(client: httpx.AsyncClient, lines: list[Line], first: int, job: str = JOB) -> httpx.Response:
    texts = [{"text": text, "at": at_s} for text, at_s in lines]
    return await client.post("/v1/checkpoint", json={"job": job, "lines": texts, "first": first})


async def replay(
    clock: Clock, clients: list[httpx.AsyncClient], *, other: list[httpx.AsyncClient] | None = None
) -> list[Any]:
    """The answer to each line, sent to the clients in turn; from the middle on to those of ``other``."""
    answers, lines = [], log()
    for number, line in enumerate(lines):
        if other is not None and number == len(lines) // 2:
            clients = other
        clock.now_s = line[1]
        reply = await send(clients[number % len(clients)], [line], number + 1)
        assert reply.status_code == 200, reply.text
        answers.append(reply.json())
    return answers


async def test_two_replicas_one_killed_half_way_answer_as_one_process(
    settings: Settings, tmp_path: Path, build: Build, clock: Clock
) -> None:
    async with served(build(Settings(home=tmp_path / "alone"))) as alone:
        expected = await replay(clock, [alone])
    assert sum(answer["safe"] for answer in expected) >= 4
    async with served(build(settings)) as a, served(build(settings)) as b, served(build(settings)) as fresh:
        # b is never asked again, and has said no goodbye; what it held in memory is gone with it.
        answers = await replay(clock, [a, b], other=[a, fresh])
    # What is kept of a log is rounded, and so may be how certain a line is.
    confidences = [[answer.pop("confidence") for answer in run] for run in (answers, expected)]
    assert confidences[0] == pytest.approx(confidences[1], abs=1e-3)
    assert answers == expected


async def test_lines_that_two_replicas_get_at_once_are_counted_once(
    settings: Settings, build: Build, clock: Clock
) -> None:
    lines = log()
    clock.now_s = lines[-1][1]
    async with served(build(settings)) as a, served(build(settings)) as b:
        replies = await asyncio.gather(*(send(client, lines, 1) for client in (a, b) * 4))
        assert {reply.json()["lines"] for reply in replies} == {len(lines)}
        assert replies[0].json()["missed"] == {}


@pytest.mark.services
async def test_an_outage_refuses_lines_and_loses_none(
    tmp_path: Path, build: Build, postgres: PostgresServer, clock: Clock
) -> None:
    settings, lines, half = Settings(home=tmp_path, database_url=postgres.new_database()), log(), len(log()) // 2
    clock.now_s = lines[-1][1]
    async with served(build(Settings(home=tmp_path / "alone"))) as alone:
        expected = (await send(alone, lines, 1)).json()
    async with served(build(settings)) as a, served(build(settings)) as b:
        assert (await send(a, lines[:half], 1)).status_code == 200
        postgres.stop()
        try:
            refused = await send(b, lines[half:], half + 1)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert "send these lines again" in refused.json()["detail"]
            question = (await a.post("/v1/checkpoint", json={"job": JOB})).json()
            assert (question["fallback"], question["safe"], question["state"]) == (True, False, JobState.UNKNOWN)
            sized = await a.post("/v1/sizing", json={"workload": "python train.py"})
            assert sized.status_code == 200
            assert (await a.get("/v1/recommendations")).status_code == 503
            assert (await a.get("/metrics")).status_code == 200
            assert PASSWORD not in refused.text + question["reason"] + sized.text
        finally:
            postgres.start()
        reply = await send(b, lines[half:], half + 1)
        for _ in range(120):
            # Callers fail at once for half a second after a connection that failed.
            if reply.status_code == 200:
                break
            await asyncio.sleep(0.5)
            reply = await send(b, lines[half:], half + 1)
        assert {name: reply.json()[name] for name in ("state", "safe", "lines", "missed")} == {
            name: expected[name] for name in ("state", "safe", "lines", "missed")
        }


@pytest.mark.services
def test_evidence_that_comes_during_an_outage_is_kept_after_it(postgres: PostgresServer) -> None:
    table = SizeTable(postgres.new_database())
    table.put(["a"], "job", 1.0, sent=StoredEvidence({"x": 1}), advice={"name": "first"})
    postgres.stop()
    try:
        with pytest.raises(DatabaseError):
            table.put(["a"], "job", 2.0, sent=StoredEvidence(profile={"y": 2}), advice={"name": "second"})
        table.put_later("a", "job", 3.0, advice={"name": "third"}, named=True)
    finally:
        postgres.start()
    kept = threading.Event()
    for _ in range(120):
        if table.flush() and not table._queued:
            break
        kept.wait(0.5)
    assert table.advice("a") == [{"name": "third"}]
    assert table.evidence("a", "job").read() == StoredEvidence({"x": 1}, {"y": 2})
    table.close()


def test_a_name_without_evidence_keeps_the_one_that_was_given(settings: Settings) -> None:
    table = SizeTable(where(settings))
    table.put(["a"], "job", 1.0, sent=StoredEvidence({"x": 1}), advice={"name": "given", "n": 1})
    table.put(["a"], "job", 2.0, sent=StoredEvidence(), advice={"name": "generated", "n": 2}, named=False)
    assert table.advice("a") == [{"name": "given", "n": 2}]
    table.close()


def test_names_are_values_and_never_sql(settings: Settings) -> None:
    hostile = "x'); DROP TABLE kopt.job; -- %s %(a)s ? \\ \" \u2028 ✓"
    jobs = JobTable(where(settings, "jobs"))
    stamp = jobs.store(hostile, hostile, None, NOW, json.dumps({"text": hostile}))
    assert jobs.load(hostile, hostile) == (stamp, json.dumps({"text": hostile}))
    assert [row.job for row in jobs.rows(None, 0.0, 10)] == [hostile]
    assert jobs.rows("nobody", 0.0, 10) == []
    # A NUL, which PostgreSQL keeps in no text, is no error either.
    assert jobs.store("o", "a\0b", None, NOW, "{}") is not None
    assert jobs.stamp("o", "a\0b") is not None
    jobs.close()


def test_the_longest_names_and_documents_are_kept(settings: Settings) -> None:
    jobs, name, document = JobTable(where(settings, "jobs")), "\U0001f600" * 512, "d" * (1 << 20)
    stamp = jobs.store("system:serviceaccount:" + "n" * 200, name, None, NOW, document)
    assert jobs.load("system:serviceaccount:" + "n" * 200, name) == (stamp, document)
    jobs.close()


def test_limits_hold(settings: Settings) -> None:
    jobs = JobTable(where(settings, "jobs"), most=400)
    for n in range(5):
        jobs.store("bob", f"ns/job-{n}", None, NOW, "{}")
    for n in range(1000):
        jobs.store("alice", f"ns-{n % 3}/job-{n}", None, NOW + n, "{}")
    assert len(jobs.rows("bob", 0.0, 1000)) == 5
    assert len(jobs.rows(None, 0.0, 2000)) <= 400 + 200
    jobs.close()
    predictions = PredictionTable(where(settings, "predictions"))
    row = Row("me", "s", CHAMPION, 300, NOW, NOW, "1", 300, 1.0, 2.0, 0.95, 1.0)
    predictions.add([row, row])
    assert predictions.prune(NOW + 1.0) == 0
    assert predictions.prune(NOW + 15 * 86_400) == 1
    predictions.put_advice("me", "pool", NOW, "{}", "{}")
    predictions.put_advice("me", "pool", NOW + 1, '{"n": 2}', "{}")
    assert predictions.advice("me", NOW) == ['{"n": 2}']
    predictions.close()


def test_writers_of_one_key_follow_each_other(settings: Settings) -> None:
    schema = "CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
    databases = [open_database(where(settings), schema) for _ in range(2)]
    with databases[0].transaction() as db:
        db.execute("INSERT INTO counter VALUES ('n', 0)")

    def add(number: int) -> None:
        for _ in range(25):
            with databases[number % 2].transaction("counter") as db:
                ((value,),) = db.query("SELECT value FROM counter")
                db.execute("UPDATE counter SET value = ?", (value + 1,))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert databases[1].query("SELECT value FROM counter") == [(100,)]
    for database in databases:
        database.close()


def test_a_transaction_that_fails_leaves_nothing(settings: Settings) -> None:
    database = open_database(where(settings), "CREATE TABLE IF NOT EXISTS t (name TEXT PRIMARY KEY)")

    def fail() -> None:
        with database.transaction() as db:
            db.execute("INSERT INTO t VALUES ('a')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert database.query("SELECT name FROM t") == []
    database.close()


def test_pairs_of_many_clusters_are_listed(settings: Settings) -> None:
    pairs = PairTable(where(settings), most=5)
    for number in range(40):
        pairs.keep("me", f"c{number:02d}", [], {f"n{n}": "{}" for n in range(8)}, {}, NOW + number)
    assert pairs.clusters("me") == [f"c{number:02d}" for number in range(8, 40)]
    kept = pairs.load("c39", Scope("me"))
    assert kept is not None
    assert sorted(kept.nodes) == ["n3", "n4", "n5", "n6", "n7"]
    pairs.close()


def test_an_unusable_address_names_no_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in (f"postgresql://kopt:{PASSWORD}@127.0.0.1:1/x", f"postgresql://kopt:{PASSWORD}@[bad/x?sslmode=none"):
        with pytest.raises(DatabaseError) as caught:
            JobTable(url).stamp("o", "j")
        assert PASSWORD not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"
    with pytest.raises(SettingsError) as refused:
        Settings.parse({"KOPT_DATABASE_URL": f"mysql://kopt:{PASSWORD}@h/x"}, home=Path("/h"))
    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in repr(Settings(home=Path("/h"), database_url=f"postgresql://kopt:{PASSWORD}@h/x"))
