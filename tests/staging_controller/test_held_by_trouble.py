"""A disk that is full and a source that changes midway: held with the reason, and nothing half-written has its name."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from controlplane.api import Object
from controlplane.processes import Server, wait_for

from .conftest import Controller, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
MIB = 1 << 20
DISK = 24 * MIB


@pytest.fixture
def small_disk(team: Team) -> Iterator[Path]:
    """The team's claim is a disk of its own of 24 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "small", str(team.claim)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield team.claim
    subprocess.run(["umount", "--lazy", str(team.claim)], timeout=60, check=True)


class Copied:
    """A copy and what belongs into it, by name; a name has all the versions that it ever had."""

    def __init__(self, team: Team, source: dict[str, bytes]) -> None:
        self.team, self.place, self.versions = team, team.claim / "tokens", dict[str, list[bytes]]()
        self.put(source)

    def put(self, source: dict[str, bytes]) -> None:
        for name, content in source.items():
            self.versions.setdefault(name, []).append(content)
            self.team.s3.put(f"{self.team.space}/{name}", content)

    def names(self) -> set[str]:
        """Files that have their names; each of them is whole."""
        found = set[str]()
        for path in self.place.iterdir() if self.place.exists() else ():
            if path.is_file() and not path.name.startswith("."):
                found.add(path.name)
                assert path.read_bytes() in self.versions[path.name], f"{path.name} is half-written"
        return found

    def wait_for(self, check: Callable[[], object], timeout_s: float = 90, what: str = "") -> None:
        """Looks at the files all the while."""
        wait_for(lambda: self.names() is not None and check(), timeout_s, what)

    def complete(self) -> bool:
        newest = {name: versions[-1] for name, versions in self.versions.items()}
        return {name: (self.place / name).read_bytes() for name in self.names()} == newest


def fill(disk: Path) -> Path:
    """Another's file that takes all that is left."""
    other = disk / "another"
    with other.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB))
        except OSError:
            return other


def is_told(team: Team) -> bool:
    """What stands on the StagedData stands on the job, too."""
    message = team.status("tokens").get("message")
    return bool(message) and team.told("train")["message"] == f"tokens: {message}"


def held_for(team: Team, reason: str) -> str:
    """The reason stands on both, and no quota is kept; the sentence."""
    told, status = team.told("train"), team.status("tokens")
    assert (told["reason"], status["reason"], team.holder("train")) == (reason, reason, "staging")
    assert told["message"] == f"tokens: {status['message']}"
    assert "QuotaReserved" not in team.conditions("train")
    assert not team.api.list("v1", "Pod", team.space, "batch.kubernetes.io/job-name=train")
    return str(status["message"])


@pytest.mark.long
def test_a_disk_that_fills_up_holds_it_until_there_is_room(
    team: Team, small_disk: Path, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller("--slow-retry=10s")
    team.wait_reviewed()
    copied = Copied(team, {f"{number}": os.urandom(4 * MIB) for number in range(4)} | {"small": b"content"})
    team.stage("tokens", f"s3://data/{team.space}", limit="2MiB/s", parallel=2)
    stored = team.submit("train", "tokens")
    copied.wait_for(lambda: len(copied.names()) > 1, what="some are there")
    other = fill(small_disk)
    copied.wait_for(lambda: team.told("train").get("state") == "failed", what="it is told")
    assert "free some room or take a larger volume" in team.told("train")["message"]
    assert "NoRoom" in team.events("tokens")["StagingFailed"]
    copied.wait_for(lambda: "to come" in team.told("train")["message"], what="it is tried again in vain")
    assert team.status("tokens")["attempts"] > 1
    copied.wait_for(
        lambda: team.status("tokens")["phase"] == "Failed" and is_told(team), what="the same stands on both"
    )
    assert "free some room or take a larger volume" in held_for(team, "NoRoom")
    kept = copied.names()
    assert kept
    assert not copied.complete()
    other.unlink()
    copied.wait_for(lambda: team.runs("train"), what="it runs once there is room")
    assert copied.complete()
    assert team.holders(stored) == ["staging", ""]


@pytest.mark.long
def test_a_disk_that_is_too_small_is_not_filled(
    team: Team, small_disk: Path, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    copied = Copied(team, {"large": os.urandom(DISK + MIB), "small": b"content"})
    team.stage("tokens", f"s3://data/{team.space}")
    team.submit("train", "tokens")
    copied.wait_for(lambda: team.told("train").get("state") == "failed", what="it is told")
    assert "take a larger volume" in held_for(team, "NoRoom")
    assert copied.names() == set()
    # The owner takes away what is not needed.
    (team.s3.folder / team.space / "large").unlink()
    copied.versions.pop("large")
    team.again("tokens")
    copied.wait_for(lambda: team.runs("train"), what="it runs")
    assert copied.complete()


@pytest.mark.long
def test_a_source_that_changes_midway_holds_it_until_it_stands_still(
    team: Team, controller: Callable[..., Controller], webhook: Server
) -> None:
    controller()
    team.wait_reviewed()
    copied = Copied(team, {"kept": b"content", "moving": os.urandom(32 * MIB)})
    staged = team.stage("tokens", f"s3://data/{team.space}", limit="1MiB/s", parallel=1)
    stored = team.submit("train", "tokens")
    for attempt in (1, 2):
        _change_midway(copied, attempt)
        # The reason stands there until the next attempt begins: ten seconds are soon over on a busy machine.
        copied.wait_for(
            lambda number=attempt: _reason(team, staged, number) in _messages(team, stored),
            timeout_s=240,
            what=f"the reason of attempt {attempt} stands on both",
        )
        assert "moving changed at its source" in _reason(team, staged, attempt)
        assert team.holders(stored) == ["staging"]
        assert "QuotaReserved" not in team.conditions("train")
        assert not team.api.list("v1", "Pod", team.space, "batch.kubernetes.io/job-name=train")
        assert copied.names() <= {"kept"}
    copied.wait_for(lambda: team.runs("train"), what="it runs once its source stands still")
    assert copied.complete()
    assert team.status("tokens")["attempts"] == 3
    assert team.holders(stored) == ["staging", ""]


def _change_midway(copied: Copied, attempt: int) -> None:
    """Another version comes while an attempt is under way."""

    def under_way() -> bool:
        status = copied.team.status("tokens")
        done = (status.get("progress") or {}).get("bytesDone", 0)
        return (status.get("phase"), status.get("attempts")) == ("Staging", attempt) and 0 < done < 8 * MIB

    copied.wait_for(under_way, what=f"attempt {attempt} is under way")
    copied.put({"moving": os.urandom(32 * MIB)})


def _reason(team: Team, staged: Object, attempt: int) -> str | None:
    """Why the StagedData waited after an attempt; None where it never has."""
    for state in team.history(staged):
        status = state.get("status") or {}
        if status.get("judged") == attempt and status["reason"] == "SourceChanged":
            assert status["phase"] == "Waiting"
            return str(status["message"])
    return None


def _messages(team: Team, stored: Object) -> set[str]:
    """All that the job has said of why it is held for want of its source standing still, without the name of the
    data."""
    notes = [
        json.loads(state["metadata"]["annotations"].get("kaiwo.ai/staging", "{}")) for state in team.history(stored)
    ]
    return {
        note["message"].removeprefix("tokens: ")
        for note in notes
        if (note.get("state"), note.get("reason")) == ("held", "SourceChanged")
    }
