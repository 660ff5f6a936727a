"""Epochs of followed jobs: as the whole log has them, by source, in numbers alone, and for longer than the jobs."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from kopt.formats.joblog.epochs import Epoch, EpochReader
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.checkpoint.session import Session
from kopt.serving.checkpoint import epochs as job_epochs
from kopt.serving.checkpoint.epochs import JobEpochs, SourceEpoch
from kopt.serving.checkpoint.job import FollowedJob
from kopt.serving.checkpoint.table import EPOCH_RETENTION_S, JobTable
from tests.serving.test_checkpoint_endpoint import JOB, NOW, Build, Clock, clock, replica, served, shipped

__all__ = ["clock", "replica", "shipped"]
Line = dict[str, Any]


def training(epochs: Sequence[int] = (1, 2), begin_s: float = NOW - 5_000, secret: str = "") -> list[Line]:
    """Ten steps of each epoch, one a minute, at 32 samples/s."""
    lines: list[Line] = [{"text": f"loading {secret}", "at": begin_s}]
    for epoch in epochs:
        for step in range(1, 11):
            text = f"Epoch [{epoch}/9] step {step}/10 loss 1.2 32 samples/s {secret}"
            lines.append({"text": text, "at": lines[-1]["at"] + 60})
    return lines


def read(lines: Sequence[Line]) -> tuple[Epoch, ...]:
    reader = EpochReader()
    for line in lines:
        reader.read(line["text"], line["at"])
    return reader.epochs()


async def send(http: httpx.AsyncClient, lines: Sequence[Line], source: str = "pod/train", first: int = 1) -> None:
    reply = await http.post("/v1/checkpoint", json={"job": JOB, "lines": lines, "source": source, "first": first})
    assert reply.status_code == 200, reply.text


async def epochs_of(http: httpx.AsyncClient, job: str = JOB) -> list[dict[str, Any]]:
    reply = await http.get("/v1/checkpoint", params={"job": job})
    assert reply.status_code == 200, reply.text
    answer: list[dict[str, Any]] = reply.json()["epochs"]
    return answer


def as_epochs(documents: Sequence[dict[str, Any]]) -> tuple[Epoch, ...]:
    names = ("number", "started_at", "ended_at", "steps", "samples_per_second", "tokens_per_second")
    return tuple(Epoch(*(document[name] for name in names)) for document in documents)


async def test_epochs_are_those_of_the_whole_log_however_it_comes_and_whoever_reads_it(replica: Build) -> None:
    lines, at = training((1, 2, 3)), 0
    for size in (1, 7, 8, 10, 5):
        async with served(replica()) as http:
            again = max(0, at - 3)
            await send(http, lines[again : at + size], first=again + 1)
            at += size
            assert as_epochs(await epochs_of(http)) == read(lines[:at])
            await send(http, lines[:at])
            assert as_epochs(await epochs_of(http)) == read(lines[:at]), "what is sent again changes nothing"
    assert at == len(lines)
    assert len(read(lines)) == 3
    assert read(lines)[1].samples_per_s == 32
    assert read(lines)[1].steps == 10


async def test_each_source_has_its_own_epochs_and_only_a_job_that_is_named_tells_them(replica: Build) -> None:
    async with served(replica()) as http:
        await send(http, training((1, 2)), "a/train")
        await send(http, training((2, 3), NOW - 2_000), "b/train")
        assert [(item["source"], item["number"]) for item in await epochs_of(http)] == [
            ("/a/train", 1),
            ("/a/train", 2),
            ("/b/train", 2),
            ("/b/train", 3),
        ]
        assert not await epochs_of(http, "team/other")
        assert (await http.get("/v1/checkpoint")).json()["epochs"] == []


async def test_nothing_of_the_text_is_kept_with_them(replica: Build, tmp_path: Path) -> None:
    endpoint = replica()
    async with served(endpoint) as http:
        await send(http, training(secret="hunter2"))
    (path,) = [path for path in tmp_path.rglob("*.db") if "checkpoint" in path.name]
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT * FROM job_epoch").fetchall()
        (document,) = db.execute("SELECT document FROM job").fetchone()
    assert len(rows) == 2
    assert [type(value) for value in rows[0][3:]] == [float, int, float, int, float, type(None), float]
    assert rows[0][:3] == ("", JOB, "pod/train")
    kept = json.loads(document)["epochs"]
    assert "hunter2" not in json.dumps(kept)
    assert "loss" not in json.dumps(kept)


async def test_they_stay_when_the_job_is_no_longer_followed(replica: Build, clock: Clock) -> None:
    endpoint = replica()
    async with served(endpoint) as http:
        await send(http, training())
        clock.now_s += 30 * 86_400
        assert (await http.get("/v1/checkpoint", params={"job": JOB})).json()["jobs"] == []
        assert len(await epochs_of(http)) == 2


def epoch(number: int, start_s: float) -> SourceEpoch:
    return SourceEpoch("pod", Epoch(number, start_s, start_s + 60, 10))


def test_they_are_bounded_by_age_and_number_and_the_one_with_most_loses_first(tmp_path: Path) -> None:
    table = JobTable(tmp_path / "jobs.db", most_epochs=5)
    many, few = (tuple(epoch(number, NOW + number) for number in range(count)) for count in (8, 2))
    table.store("o", "a/small", None, NOW, "{}", few)
    # Pruned with the first job that is stored, and with every 200th.
    for number in range(200):
        table.store("o", f"b/large-{number % 2}", table.stamp("o", f"b/large-{number % 2}"), NOW + 1, "{}", many)
    assert len(table.epochs(None, "a/small")) == 2
    assert sum(len(table.epochs(None, f"b/large-{number}")) for number in range(2)) <= 3
    for number in range(200):
        table.store("o", f"c/{number}", None, NOW + EPOCH_RETENTION_S + 2, "{}")
    assert not table.epochs(None, "a/small")
    table.close()


def test_a_log_that_names_epochs_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_epochs, "MOST_EPOCHS", 5)
    epochs = JobEpochs()
    for number in range(100):
        epochs.read("pod", f"epoch {number % 2}", NOW + number)
        if number == 50:
            assert len(epochs.changed()) == 5
            epochs.stored()
            epochs = JobEpochs.from_dict(json.loads(json.dumps(epochs.to_dict())))
    assert len(epochs.changed()) == 1
    assert epochs.changed()[0].epoch.end_s == NOW + 99


def test_of_many_sources_that_print_the_same_some_are_read_and_a_silent_one_gives_way() -> None:
    epochs = JobEpochs()
    for rank in range(20):
        epochs.read(f"rank-{rank}", "epoch 1", NOW)
        epochs.read(f"rank-{rank}", "loading", NOW)
    assert {each.source for each in epochs.changed()} == {f"rank-{rank}" for rank in range(job_epochs.MOST_READERS)}
    epochs.read("again", "epoch 1", NOW + 60)
    assert "again" not in {each.source for each in epochs.changed()}
    epochs.read("again", "epoch 2", NOW + 3_600)
    assert "again" in {each.source for each in epochs.changed()}
    assert len(epochs.changed()) == job_epochs.MOST_READERS


def test_what_is_stored_is_not_stored_again_before_it_goes_on() -> None:
    epochs = JobEpochs()
    epochs.read("pod", "epoch 1", NOW)
    epochs.read("pod", "epoch 2", NOW + 60)
    assert [each.epoch.number for each in epochs.changed()] == [1, 2]
    epochs.stored()
    assert epochs.changed() == ()
    assert len(epochs._readers["pod"].epochs()) == 1, "what has ended takes no room"
    epochs.read("pod", "loss 1.2", NOW + 90)
    assert [each.epoch for each in epochs.changed()] == [Epoch(2, NOW + 60, NOW + 90)]


def test_a_job_that_an_older_endpoint_stored_is_followed_on(shipped: CheckpointPredictor) -> None:
    job = FollowedJob(Session(shipped.classifier))
    job.read_lines(["Epoch 1"], [NOW], "pod", None, NOW)
    document = json.loads(json.dumps(job.to_dict()))
    assert FollowedJob.from_dict(document, shipped.classifier).epochs.changed() == job.epochs.changed()
    del document["epochs"]
    older = FollowedJob.from_dict(document, shipped.classifier)
    assert older.epochs.changed() == ()
    assert older.next == {"pod": 2}
    with pytest.raises(ValueError, match="no stored"):
        FollowedJob.from_dict({**document, "epochs": {"pod": {"count": 1}}}, shipped.classifier)
