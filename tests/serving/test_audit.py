"""The audit log at the endpoint: nothing comes twice, nothing is replaced, and tampering with the database shows."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from asgi_server import served
from postgres_server import PostgresServer, postgres
from typer.testing import CliRunner

from kopt.cli.main import app as cli
from kopt.cluster.client.auth_reviews import Caller
from kopt.core.audit import FIRST, AuditChain, Head, SealedRecord, read_record, verify
from kopt.core.settings import Settings
from kopt.serving.audit.table import AuditTable
from kopt.serving.base.database.opening import open_database
from kopt.serving.client.audit import AuditSender
from kopt.serving.client.blocking import PredictionClient
from kopt.serving.client.transport import RequestRefused
from kopt.serving.contract.audit_answers import AuditQuery
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from tests.serving.conftest import MemorySource, no_store

__all__ = ["postgres"]
WRITE = {
    "kind": "write",
    "verb": "patch",
    "component": "gangs",
    "object": {"apiVersion": "batch/v1", "kind": "Job", "namespace": "research", "name": "train", "uid": "5f1c"},
    "before": {"spec": {"suspend": False}},
    "after": {"spec": {"suspend": True}},
}
DECISION = {
    "kind": "decision",
    "verb": "preemption",
    "component": "preemption",
    "object": {"kind": "Workload", "namespace": "research", "name": "job-urgent"},
    "details": {
        "reasons": [{"code": "PREEMPT", "message": "It frees 8 GPUs."}],
        "models": [{"name": "checkpoint", "version": "7", "digest": "ab"}],
    },
}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    if request.param == "sqlite":
        return Settings(home=tmp_path)
    server: PostgresServer = request.getfixturevalue("postgres")
    return Settings(home=tmp_path, database_url=server.new_database())


@pytest.fixture
def running(settings: Settings, source: MemorySource) -> Iterator[Endpoint]:
    built = assemble(settings, Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600))
    yield built
    assert built.audit is not None
    built.audit.close()


@pytest.fixture
def url(running: Endpoint) -> Iterator[str]:
    with served(create_app(running, manage=False)) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[PredictionClient]:
    with PredictionClient(url, deadline_s=30) as opened:
        yield opened


def chain_of(number: int = 1) -> AuditChain:
    return AuditChain(f"gangs/kopt-gangs-{number}/1")


def sealed(chain: AuditChain, count: int = 3, **content: Any) -> list[SealedRecord]:
    return [chain.seal({"at_s": 1_795_863_600.0 + chain.sequence, **(content or WRITE)}) for _ in range(count)]


def change(settings: Settings, sql: str) -> None:
    """By somebody who can write the database."""
    if settings.database_url:
        with psycopg.connect(settings.database_url) as connection:
            connection.execute("SET search_path TO kopt")
            for statement in sql.split(";"):
                connection.execute(statement)
        return
    with open_database(settings.state / "audit.db", "").transaction() as transaction:
        for statement in sql.split(";"):
            transaction.execute(statement)


def run(url: str, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner(env={"KOPT_URL": url}).invoke(cli, ["audit", *map(str, arguments), "-o", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, json.loads(result.stdout)


def test_what_is_sent_is_read_in_order_and_once(client: PredictionClient) -> None:
    first, second = chain_of(1), chain_of(2)
    records = [*sealed(first), *sealed(second, **DECISION), *sealed(first)]
    assert client.send_audit(records[:4]).kept == 4
    again = client.send_audit(records)
    assert (again.kept, again.head.position) == (5, 9)
    answer = client.audit(AuditQuery(limit=500))
    assert [item.text for item in answer.records] == [record.text for record in records]
    assert verify([item.stored for item in answer.records]) == []
    assert answer.head == again.head
    assert answer.start.head == Head(0, FIRST)


def test_queries(client: PredictionClient) -> None:
    client.send_audit([*sealed(chain_of(1), 5), *sealed(chain_of(2), 2, **DECISION)])

    def positions(**limits: Any) -> list[int]:
        return [item.position for item in client.audit(AuditQuery(**limits)).records]

    assert positions(kind="decision") == [6, 7]
    assert positions(namespace="research", name="train") == [1, 2, 3, 4, 5]
    assert positions(component="gangs", limit=2) == [4, 5]
    assert positions(limit=2, before=4) == [2, 3]
    assert positions(after=5) == [6, 7]
    assert positions(since_s=1_795_863_603.0) == [4, 5]
    assert positions(until_s=1_795_863_601.0) == [1, 6]
    assert positions(name="nobody") == []


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "after=-1", "after=x", "since_s=nan", "nonsense=1", "before=1e400"]
)
def test_wrong_queries_are_refused(url: str, query: str) -> None:
    answer = httpx.get(f"{url}/v1/audit?{query}", trust_env=False)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == query.partition("=")[0]


def test_what_is_kept_cannot_be_replaced(client: PredictionClient) -> None:
    record = sealed(chain_of(), 1)
    client.send_audit(record)
    other = [*sealed(chain_of(), 1, **DECISION), *sealed(chain_of(9), 1)]
    with pytest.raises(RequestRefused, match=r"409.*another text"):
        client.send_audit(other)
    answer = client.audit(AuditQuery())
    assert [item.text for item in answer.records] == [record[0].text]


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"chain":"a","sequence":1,"previous":"","at_s":"x"}'])
def test_what_is_no_record_is_refused_with_its_number(client: PredictionClient, text: str) -> None:
    from kopt.core.audit import digest_of

    with pytest.raises(RequestRefused, match=r"422.*records\.1"):
        client.send_audit([*sealed(chain_of(), 1), SealedRecord(text, digest_of(text))])
    with pytest.raises(RequestRefused, match=r"422.*hash"):
        client.send_audit([SealedRecord(sealed(chain_of(), 1)[0].text, FIRST)])
    assert client.audit(AuditQuery()).records == ()


def test_the_command_shows_it_and_finds_it_whole(client: PredictionClient, url: str) -> None:
    client.send_audit([*sealed(chain_of(1), 2), *sealed(chain_of(2), 1, **DECISION)])
    status, document = run(url, "log")
    assert status == 0
    rows = document["records"]
    assert [row["component"] for row in rows] == ["gangs", "gangs", "preemption"]
    assert rows[0]["text"] == "spec.suspend: false → true"
    assert rows[0]["object"] == "Job research/train"
    assert (rows[2]["text"], rows[2]["models"]) == ("It frees 8 GPUs.", ["checkpoint@7"])
    status, checked = run(url, "verify", "--head", document["head"])
    assert (status, checked["whole"], checked["faults"]) == (0, True, [])


def test_more_than_a_page(client: PredictionClient, url: str) -> None:
    chain = chain_of()
    for _ in range(3):
        client.send_audit(sealed(chain, 400))
    assert run(url, "verify")[1]["head"].startswith("1200:")
    rows = run(url, "log", "--last", 700)[1]["records"]
    assert [row["position"] for row in rows] == list(range(501, 1201))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE audit_record SET text = replace(text, 'train', 'other') WHERE position = 3", "hash"),
        ("UPDATE audit_record SET caller = 'somebody' WHERE position = 3", "link"),
        ("DELETE FROM audit_record WHERE position = 3", "gone"),
        ("DELETE FROM audit_record WHERE position < 3", "gone"),
        (
            "UPDATE audit_record SET position = 99 WHERE position = 3;"
            "UPDATE audit_record SET position = 3 WHERE position = 4;"
            "UPDATE audit_record SET position = 4 WHERE position = 99",
            "link",
        ),
    ],
)
def test_tampering_with_the_database_shows(
    client: PredictionClient, url: str, settings: Settings, sql: str, said: str
) -> None:
    client.send_audit(sealed(chain_of(), 9))
    change(settings, sql)
    status, document = run(url, "verify")
    assert (status, document["whole"]) == (1, False)
    assert any(said in fault["text"] for fault in document["faults"])


def test_a_cut_off_end_shows_by_a_head_and_by_the_components_logs(
    client: PredictionClient, url: str, settings: Settings, tmp_path: Path
) -> None:
    records = sealed(chain_of(), 5)
    client.send_audit(records)
    head = run(url, "log")[1]["head"]
    log = tmp_path / "gangs.log"
    lines = [
        f'{{"logger":"kopt.audit","sha256":"{record.digest}","level":"INFO","record":{record.text}}}\n'
        for record in records
    ]
    log.write_text('{"message":"probes and metrics on port 1"}\n' + "".join(lines))
    assert run(url, "verify", "--head", head, log)[0] == 0
    change(settings, "DELETE FROM audit_record WHERE position = 5")
    assert run(url, "verify")[0] == 0
    assert run(url, "verify", "--head", head)[0] == 1
    status, document = run(url, "verify", log)
    assert status == 1
    assert [fault["text"] for fault in document["faults"]] == [
        "gangs.log, line 6: recorded something that is not in it"
    ]


def test_the_oldest_are_given_up_and_the_rest_stays_verifiable(settings: Settings) -> None:
    now_s = [1_795_863_600.0]
    table = AuditTable(settings.database_url or settings.state / "audit.db", retention_s=100, clock=lambda: now_s[0])
    chain = chain_of()

    def append(count: int) -> None:
        table.append("", [(record, read_record(record)) for record in sealed(chain, count)])

    append(3)
    now_s[0] += 60
    append(3)
    now_s[0] += 60
    append(1)
    records, start, head = table.read(AuditQuery(after=0, limit=500), None)
    assert [record.position for record in records] == [4, 5, 6, 7]
    assert (start.position, head.position) == (3, 7)
    assert verify(records, start) == []
    now_s[0] += 1000
    append(1)
    records, start, head = table.read(AuditQuery(after=0, limit=500), None)
    assert ([record.position for record in records], start.position) == ([8], 7)
    assert verify(records, start) == []
    table.close()


class Tokens:
    """Components may append, an operator may list; everybody else may only ask."""

    async def caller(self, token: str) -> Caller | None:
        return Caller(token)

    async def may(self, caller: Caller, verb: str, path: str) -> bool:
        return {"put": caller.name == "component", "list": caller.name == "operator"}.get(verb, True)

    async def may_on_jobs(self, caller: Caller, verb: str, namespace: str) -> bool:
        return False


def test_only_components_append_and_only_operators_see_all(settings: Settings, source: MemorySource) -> None:
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600, reviewer=Tokens())
    endpoint = assemble(settings, parts)
    record = sealed(chain_of(), 1)
    with served(create_app(endpoint, manage=False)) as url:

        def client(name: str) -> PredictionClient:
            return PredictionClient(url, deadline_s=30, token=lambda: name)

        with client("component") as component, client("team") as team, client("operator") as operator:
            component.send_audit(record)
            with pytest.raises(RequestRefused, match="403"):
                team.send_audit(sealed(chain_of(2), 1))
            assert [item.caller for item in operator.audit(AuditQuery()).records] == ["component"]
            assert team.audit(AuditQuery()).records == ()
    assert endpoint.audit is not None
    endpoint.audit.close()


def test_a_sender_outlives_an_endpoint_that_is_away(running: Endpoint) -> None:
    """What was recorded meanwhile arrives, in order."""
    from controlplane.processes import free_port, wait_for

    port, chain = free_port(), chain_of()
    sender = AuditSender(f"http://127.0.0.1:{port}", longest_pause_s=0.5)
    for record in sealed(chain, 3):
        sender(record)
    time.sleep(1.0)
    assert sender.sent == 0
    with served(create_app(running, manage=False), port=port) as url, PredictionClient(url, deadline_s=30) as client:
        for record in sealed(chain, 1000):
            sender(record)
        wait_for(lambda: sender.sent == 1003, what="everything has arrived")
        answer = client.audit(AuditQuery(after=0, limit=500))
        assert verify([item.stored for item in answer.records]) == []
        assert sender.head == Head(answer.head.position, answer.head.link)
        for record in sealed(chain, 1):
            sender(record)
        sender.close()
        assert client.audit(AuditQuery()).head.position == 1004


def test_a_sender_keeps_what_its_account_may_not_send_yet(
    settings: Settings, source: MemorySource, caplog: pytest.LogCaptureFixture
) -> None:
    """Once the right is granted everything arrives, in order; it is said once that it is missing."""
    from controlplane.processes import wait_for

    class Granted(Tokens):
        is_granted = False

        async def may(self, caller: Caller, verb: str, path: str) -> bool:
            return self.is_granted or await super().may(caller, verb, path)

    reviewer = Granted()
    parts = Parts(source=source, features=StoredFeatures(no_store), refresh_s=3600, reviewer=reviewer)
    endpoint, records = assemble(settings, parts), sealed(chain_of(), 3)
    with served(create_app(endpoint, manage=False)) as url:
        sender = AuditSender(url, token=lambda: "team", longest_pause_s=0.5)
        for record in records:
            sender(record)
        wait_for(lambda: sender.refusals >= 2, what="it is refused again")
        assert sender.sent == 0
        reviewer.is_granted = True
        wait_for(lambda: sender.sent == 3, what="what was kept has arrived")
        sender.close()
        with PredictionClient(url, deadline_s=30, token=lambda: "operator") as client:
            answer = client.audit(AuditQuery(after=0))
    assert [item.text for item in answer.records] == [record.text for record in records]
    assert verify([item.stored for item in answer.records]) == []
    warnings = [line for line in caplog.messages if "from this account" in line]
    assert len(warnings) == 1
    assert endpoint.audit is not None
    endpoint.audit.close()


def test_a_sender_keeps_the_newest_within_its_bound(running: Endpoint) -> None:
    """What had no room is missing, and verification says so and no more."""
    from controlplane.processes import free_port, wait_for

    port, records, other = free_port(), sealed(chain_of(), 50), chain_of(2).seal({"at_s": 1.0})
    kept = [record.text for record in (*records[41:], other)]
    sender = AuditSender(f"http://127.0.0.1:{port}", queued_chars=10 * len(records[-1].text), longest_pause_s=0.5)
    for record in (*records, other):
        sender(record)
    with served(create_app(running, manage=False), port=port) as url, PredictionClient(url, deadline_s=30) as client:
        wait_for(lambda: sender.sent >= len(kept), what="what was kept has arrived")
        sender.close()
        answer = client.audit(AuditQuery(after=0, limit=500))
    # A batch that was on its way while the queue overflowed may have arrived too.
    assert [item.text for item in answer.records][-len(kept) :] == kept
    faults = verify([item.stored for item in answer.records])
    assert faults
    assert all(fault.is_loss for fault in faults)
