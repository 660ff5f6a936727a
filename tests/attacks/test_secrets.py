"""No piece of a secret stays anywhere that is stored or shown, and what only looks like one stays readable."""

import asyncio
import json
import shlex
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from secret_corpus import FORMS, HARMLESS, Form, left_of, plain

from kopt.agents.logtail.records import LogLine
from kopt.agents.logtail.sender import ByteBudget, Counters, Sender, SenderSettings
from kopt.cli.errors import explain
from kopt.cluster.runtime.events import EventRecorder
from kopt.core.redaction import HIDDEN, redact, redact_arguments, redact_document
from kopt.core.redaction.texts import _HARMLESS as remembered
from kopt.core.secret_names import names_a_secret
from kopt.core.settings import Settings
from kopt.core.staging.manifest import redacted
from kopt.dashboard.pages.sizes.data import Sizes
from kopt.dashboard.pages.sizes.view import recommendations
from kopt.serving.checkpoint.redaction import kept_text
from kopt.serving.checkpoint.table import JobTable
from kopt.serving.contract.recommendation_answers import parse_recommendations
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.serving.sizing.service import SizingService
from kopt.serving.sizing.table import SizeTable

IDS = [f"{number}-{form.template[:40]}" for number, form in enumerate(FORMS)]
COMMANDS = [form for form in FORMS if form.template.split(" ")[0] in ("t.py", "train.py", "python", "mysql", "curl")]


def words_of(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def test_the_corpus_is_large_enough() -> None:
    assert len({form.template for form in FORMS}) >= 100
    assert len(set(HARMLESS)) >= 60


def test_only_short_texts_without_secrets_are_remembered() -> None:
    for form in FORMS:
        secret, text = form.drawn(0)
        assert redact(text) == redact(text)
        assert not any(left_of(secret, kept) for kept in remembered)
    for number in range(10_000):
        redact(f"pod-{number}")
    redact("a" * 100_000)
    assert len(remembered) < 10_000
    assert max(map(len, remembered)) < 1000


@pytest.mark.parametrize("form", FORMS, ids=IDS)
@pytest.mark.parametrize("seed", range(3))
def test_no_piece_of_a_secret_is_left(form: Form, seed: int) -> None:
    secret, text = form.drawn(seed)
    shown = redact(text)
    assert left_of(secret, shown) == []
    assert redact(shown) == shown
    for found in redact_arguments(words_of(text)):
        assert left_of(secret, found) == []
    documents: tuple[Any, ...] = (
        {"spec": {"containers": [{"command": ["bash", "-c", text]}]}},
        [{"msg": text}],
        {"args": words_of(text)},
        {text: 1},
        json.dumps({"log": text}),
        f"[rank0]: 2026-03-01 12:00:00,123 INFO {text}",
    )
    for document in documents:
        assert left_of(secret, json.dumps(redact_document(document))) == [], document
    assert left_of(secret, kept_text(text)) == []


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays_readable(text: str) -> None:
    assert redact(text) == text
    assert redact_arguments(words_of(text)) == tuple(words_of(text))
    assert redact_document({"args": [text], "message": text}) == {"args": [text], "message": text}


@given(st.sampled_from(FORMS), st.integers(0, 10**9), st.text(max_size=20), st.text(max_size=20))
def test_secrets_are_hidden_whatever_stands_around_them(form: Form, seed: int, before: str, after: str) -> None:
    secret, text = form.drawn(seed)
    line = f"{before} {text} {after}"
    quotes = {*before, *after} & set("\"'\\")
    if not quotes and not left_of(secret, before + after):
        assert left_of(secret, redact(line)) == []


@given(st.text(max_size=200))
def test_redacting_is_total_and_done_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
        max_leaves=12,
    )
)
def test_documents_keep_their_shape(document: Any) -> None:
    found = redact_document(document)
    assert type(found) is type(document)
    assert redact_document(found) == found


def test_variables_are_hidden_by_their_names() -> None:
    secret = plain(__import__("random").Random(1))
    shown = redact_document({"HF_TOKEN": secret, "PGPASSWORD": secret, "URL": f"https://me:{secret}@x", "LR": "0.1"})
    assert shown == {"HF_TOKEN": HIDDEN, "PGPASSWORD": HIDDEN, "URL": "https://***@x", "LR": "0.1"}
    manifest = {"env": [{"name": "DB_PASSWORD", "value": secret}, {"name": "LR", "value": "0.1"}]}
    assert redact_document(manifest)["env"] == [
        {"name": "DB_PASSWORD", "value": HIDDEN},
        {"name": "LR", "value": "0.1"},
    ]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("hfToken", True),
        ("db.password", True),
        ("X-Amz-Signature", True),
        ("apikey", True),
        ("AWS_ACCESS_KEY_ID", True),
        ("clientSecret", True),
        ("MYSQL_PWD", True),
        ("max_tokens", False),
        ("tokenizer", False),
        ("eos_token", False),
        ("password_file", False),
        ("secretName", False),
        ("sort_key", False),
        ("author", False),
        ("seed", False),
        ("num_key_value_heads", False),
        ("patience", False),
        ("signal", False),
        ("", False),
        ("7", False),
    ],
)
def test_names_say_what_is_secret(name: str, secret: bool) -> None:
    assert names_a_secret(name) is secret


def test_long_lines_of_marks_are_redacted_in_linear_time() -> None:
    """Twenty times the text may take fifty times as long at most: nothing backtracks."""
    for mark in (
        "a=",
        "password ",
        "://a:",
        "-p ",
        'token=\\"',
        "eyJ",
        "'\"",
        "key",
        "?sig=",
        "<pass",
        "echo x | ",
        "\\",
    ):
        took = []
        for length in (5_000, 100_000):
            text = mark * (length // len(mark))
            began = time.process_time()
            redact(text)
            took.append(time.process_time() - began)
        assert took[1] < 50 * max(took[0], 0.02), (mark, took)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    built = assemble(Settings(home=tmp_path), Parts(features=StoredFeatures(_no_store), refresh_s=3600))
    built.service(SizingService).refresh()
    yield built
    built.stop()


def _no_store() -> None:
    raise ValueError("there is no store in this test")


def _bytes(home: Path, name: str) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in home.glob(f"{name}*"))


def _manifest(words: list[str], text: str, secret: str) -> dict[str, Any]:
    container = {
        "name": "c",
        "image": "registry.example/train:1",
        "args": words,
        "command": ["python"],
        "env": [{"name": "HF_TOKEN", "value": secret}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    return {"kind": "Pod", "metadata": {"name": text[:60]}, "spec": {"containers": [container]}}


def test_questions_about_sizes_leave_no_secret_behind(endpoint: Endpoint, tmp_path: Path) -> None:
    client = TestClient(create_app(endpoint, manage=False))
    secrets = []
    for number, form in enumerate(COMMANDS):
        secret, text = form.drawn(number)
        secrets.append(secret)
        words = words_of(text)
        questions: list[dict[str, Any]] = [
            {"workload": ["python", *words], "name": f"job {number} {text}"[:250]},
            {"workload": text},
            {"workload": _manifest(words, text, secret)},
        ]
        if number % 10 == 0:
            # A child reads the source, which takes its time.
            source = f"import torch  # {text}\n"
            questions.append({"workload": {"script": source, "arguments": words, "name": "train.py"}})
        for question in questions:
            reply = client.post("/v1/sizing", json=question)
            assert reply.status_code in (200, 202, 422), reply.text
    assert endpoint.service(SizingService).table is not None
    endpoint.service(SizingService).table.flush()
    shown = client.get("/v1/recommendations").text
    page = repr(recommendations(Sizes(parse_recommendations(json.loads(shown)).size_advice)))
    stored = _bytes(tmp_path, "sizing.db")
    assert "train.py" in shown
    for secret in secrets:
        for place, text in (("answer", shown), ("page", page), ("disk", stored)):
            assert left_of(secret, text) == [], place


def test_what_an_earlier_version_wrote_is_cleansed_at_the_start(tmp_path: Path) -> None:
    drawn = [form.drawn(7) for form in FORMS]
    SizeTable(tmp_path / "sizing.db").close()
    JobTable(tmp_path / "checkpoint.db").close()
    for name, statement in (
        ("sizing.db", "INSERT INTO size VALUES ('me', ?, 1e10, NULL, NULL, ?)"),
        ("checkpoint.db", "INSERT INTO job VALUES ('me', ?, 's', 1e10, ?)"),
    ):
        with sqlite3.connect(tmp_path / name) as database:
            database.execute("PRAGMA user_version = 0")
            for number, (_, text) in enumerate(drawn):
                database.execute(statement, (str(number), json.dumps({"name": text, "estimate": {"script": text}})))
        database.close()
    table, jobs = SizeTable(tmp_path / "sizing.db"), JobTable(tmp_path / "checkpoint.db")
    try:
        assert len(table.advice("me")) == len(drawn)
        for name in ("sizing.db", "checkpoint.db"):
            stored = _bytes(tmp_path, name)
            for secret, text in drawn:
                assert left_of(secret, stored) == [], (name, text)
    finally:
        table.close()
        jobs.close()


async def test_an_agent_sends_no_secret_of_a_log() -> None:
    sent: list[dict[str, Any]] = []

    async def post(request: dict[str, Any]) -> dict[str, Any]:
        sent.append(request)
        return {"next": {"log": request.get("first", 0) + len(request["lines"])}}

    sender = Sender(
        "job",
        post,
        ByteBudget(1 << 20),
        SenderSettings(linger_s=0.0),
        Counters(),  # type: ignore[arg-type]
        keep=lambda *_: None,
        answered=lambda _: None,
    )
    drawn = [form.drawn(3) for form in FORMS if "\n" not in form.template]
    running = asyncio.create_task(sender.run())
    try:
        await sender.put("log", 1, [LogLine(text, 1.0) for _, text in drawn])
        for _ in range(900):
            if sum(len(one["lines"]) for one in sent) >= len(drawn):
                break
            await asyncio.sleep(0.1)
    finally:
        running.cancel()
    text = json.dumps(sent)
    assert text.count('"text"') == len(drawn)
    for secret, _ in drawn:
        assert left_of(secret, text) == []


async def test_events_errors_and_staging_messages_say_no_secret() -> None:
    recorder = EventRecorder(None, "kaiwo.ai/test", "pod")  # type: ignore[arg-type]
    for form in FORMS:
        secret, text = form.drawn(5)
        recorder.record({"kind": "Job", "name": "a"}, "Reason", "Act", text)
        assert left_of(secret, repr([one.document for one in recorder._queue])) == []
        recorder._queue.clear()
        assert left_of(secret, redacted(text)) == []
        assert left_of(secret, explain(RuntimeError(text))) == []
        assert left_of(secret, explain(ValueError(f"No connection to {text}"))) == []
