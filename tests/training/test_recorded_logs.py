"""``kopt train checkpoint --from-cluster``: from lines and folders that an endpoint was sent to labels and a model."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from empty_registry import with_empty_registry
from postgres_server import postgres

from kopt.agents.logtail.volumes import PodVolumes
from kopt.cli.errors import Refused
from kopt.cli.training.checkpoint import COMMAND
from kopt.cli.training.command import TrainInputs
from kopt.core.settings import Settings
from kopt.core.units import MIB
from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.labelled import LabelledLog
from kopt.models.checkpoint.files import FileFact
from kopt.models.registry.loading import load_predictor
from kopt.models.registry.registry import Registry
from kopt.serving.base.database.opening import location
from kopt.serving.checkpoint.recording import Listing, RecordingTable
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.contract.common import DEADLINE_HEADER
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import Endpoint, create_app
from kopt.serving.endpoint.assemble import Parts, assemble
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks
from tests.serving.conftest import URL, MemorySource, StandInModel, no_store

__all__ = ["postgres"]
NOW, LOOK_S, SAVES = 1_790_000_000.0, 5.0, 6
SECRET = "hf_" + "a1B2" * 9
Build = Callable[[Settings], Endpoint]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    home = with_empty_registry(tmp_path / "home")
    if request.param == "sqlite":
        return Settings(home=home, record_logs_mib=2)
    return Settings(home=home, record_logs_mib=2, database_url=request.getfixturevalue("postgres").new_database())


@pytest.fixture
def build() -> Iterator[Build]:
    started: list[Endpoint] = []
    source = MemorySource()
    source.add(StandInModel())
    shipped = load_predictor("checkpoint", "shipped")

    def make(settings: Settings) -> Endpoint:
        parts = Parts(source, StoredFeatures(no_store), refresh_s=3600, shipped={"checkpoint": lambda: shipped})
        endpoint = assemble(settings, parts)
        endpoint.start()
        endpoint.service(CheckpointService).refresh()
        started.append(endpoint)
        return endpoint

    yield make
    for endpoint in started:
        endpoint.stop()


class Trainer:
    """A training that saves into a pod's volume and says so in words that no model knows, one line a second."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "uid-1" / "volumes" / "kubernetes.io~nfs" / "work"
        self.folder.mkdir(parents=True)
        self.volumes = PodVolumes(root, "uid-1", clock=lambda: self.at_s)
        self.at_s, self.step, self.save = NOW, 0, 0

    def written(self, name: str, size_bytes: int) -> None:
        path = self.folder / f"checkpoint-{self.step}"
        path.mkdir(exist_ok=True)
        (path / name).write_bytes(b"x" * size_bytes)
        os.utime(path / name, (self.at_s, self.at_s))

    def lines(self) -> Iterator[tuple[float, str]]:
        yield self.at_s, "setting up"
        for _ in range(SAVES):
            for _ in range(20):
                self.at_s, self.step = self.at_s + 1, self.step + 1
                yield self.at_s, f"step {self.step} loss 1.{self.step}"
                if self.step % 20 == 12:
                    yield self.at_s, f"dumping plot {self.step}"
            self.at_s += 0.5
            yield self.at_s, f"(>) dumping brain {self.step}"
            for part in range(4):
                self.at_s += 2
                self.written(f"part-{part}.pt", 1000)
                if part == 1:
                    yield self.at_s, f"busy with token={SECRET}"
            self.at_s += 1
            yield self.at_s, f"(<) brain export {self.step} ok"

    def requests(self) -> Iterator[dict[str, Any]]:
        """What the agent sends: lines as they come, and the folder every five seconds."""
        looked_s = 0.0
        for number, (at_s, text) in enumerate(self.lines(), 1):
            yield {"lines": [{"text": text, "at": at_s}], "first": number}
            if at_s - looked_s >= LOOK_S:
                looked_s = at_s
                yield {"listings": [{"by": "uid-1", "files": self.volumes.observe(at_s), "at": at_s}]}


async def send(endpoint: Endpoint, requests: Iterator[dict[str, Any]], job: str) -> None:
    transport = httpx.ASGITransport(create_app(endpoint, manage=False), raise_app_exceptions=False)
    headers = {DEADLINE_HEADER: "30000"}
    async with httpx.AsyncClient(transport=transport, base_url=URL, headers=headers) as client:
        for request in requests:
            reply = await client.post("/v1/checkpoint", json={"job": job, **request})
            assert reply.status_code == 200, reply.text


def inputs(settings: Settings) -> TrainInputs:
    return TrainInputs(settings, None, None, None, "", "service", "7d", "5m", True)


def labelled(log: LabelledLog, label: LineLabel) -> set[str]:
    """The lines of a label, without their numbers."""
    return {log.lines[number - 1].rstrip("0123456789 ") for number, of in log.labels.items() if of is label}


def test_recorded_jobs_are_labelled_by_their_files_and_learned_from(
    settings: Settings, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint = build(settings)
    for n in (1, 2):
        trainer = Trainer(tmp_path / f"pods-{n}")
        asyncio.run(send(endpoint, trainer.requests(), f"team/llama-{n}"))
    asyncio.run(send(endpoint, iter([{"lines": [f"step {n}" for n in range(50)]}]), "team/unwatched"))
    silent = [{"lines": [f"hm {n}" for n in range(50)]}, {"files": [], "files_at": NOW}]
    asyncio.run(send(endpoint, iter([silent[1], silent[0]]), "team/silent"))
    # Sending again is harmless: the same lines are kept once.
    again = {"lines": [{"text": "setting up", "at": NOW}], "first": 1}
    asyncio.run(send(endpoint, iter([again, again]), "team/llama-1"))
    source = COMMAND.source(inputs(settings))
    said = capfd.readouterr().err
    assert "team/silent" in said
    assert "unwatched" not in said, "whose folders nobody looks at is not kept"
    dataset = source.read()
    assert len(dataset.names) == 2
    for log in dataset.logs:
        assert log.framework == "own llama"
        assert labelled(log, LineLabel.CKPT_BEGIN) == {"(>) dumping brain"}
        assert {log.labels[n] for n, line in enumerate(log.lines, 1) if line.startswith("(<)")} == {LineLabel.CKPT_END}
        plots = [number for number, line in enumerate(log.lines, 1) if "plot" in line]
        assert len(plots) == SAVES
        assert not log.labels.keys() & set(plots), "it speaks of saving, and comes with no write"
        assert len(log.writes) == len(log.spans) == SAVES
        assert sum(label is LineLabel.TRAIN_STEP for label in log.labels.values()) == 20 * SAVES
        assert any("busy with token=***" in line for line in log.lines)
        assert not any(SECRET in line for line in log.lines)
    monkeypatch.setattr("kopt.training.checkpoint.recipe.MADE_JOBS", 100)
    options = TrainOptions(folds=2, parameters={"epochs": 2})
    registry = Registry(settings)
    outcome = train(
        "checkpoint", source=source, settings=settings, options=options, tasks=HereTasks(), registry=registry
    )
    assert outcome.model.gate in ("passed", "refused")


def test_nothing_is_recorded_unless_it_was_allowed(settings: Settings, build: Build, tmp_path: Path) -> None:
    off = replace(settings, record_logs_mib=0)
    asyncio.run(send(build(off), Trainer(tmp_path / "pods").requests(), "team/llama"))
    with pytest.raises(Refused, match="no recorded log"):
        COMMAND.source(inputs(off))


def test_what_is_kept_is_bounded_and_who_keeps_most_pays(settings: Settings) -> None:
    table = RecordingTable(location(settings, "recordings"), MIB)
    looked = [Listing("me", NOW, (FileFact("a.pt\n\x1b[2J", 5, NOW),))]
    table.add("", "team/small", [(NOW, "one line\nof two")], looked, NOW)
    for n in range(60):
        table.add("", "team/greedy", [(NOW + n, "x" * 10_000)] * 200, [], NOW + n)
    greedy, small = table.load("", "team/greedy"), table.load("", "team/small")
    assert 0 < sum(len(text) for _, text in greedy.lines) <= MIB
    assert greedy.lines[-1][0] == NOW + 59, "the oldest went"
    assert max(len(text) for _, text in greedy.lines) <= 400
    assert [text for _, text in small.lines] == ["one line of two"]
    assert small.listings[0].files[0].path == "a.pt\n\x1b[2J"
    table.close()
