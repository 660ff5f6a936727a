"""What happens to the destination: from local files, with full disks, hostile names, torn journals and rivals."""

import asyncio
import hashlib
import json
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from controlplane.processes import spawn, wait_for
from replicas import KOPT

from kopt.agents.staging import fetching
from kopt.agents.staging.checking import Damage, verify
from kopt.agents.staging.folder import Folder
from kopt.agents.staging.journal import Journal
from kopt.agents.staging.settings import StageSettings
from kopt.agents.staging.staging import stage
from kopt.core.staging.manifest import Checksum, Phase, Progress, Source, StagingError, Trouble
from tests.staging.conftest import content, run, staged


@pytest.fixture
def source(tmp_path: Path) -> Path:
    place = tmp_path / "source"
    (place / "inner" / "deep").mkdir(parents=True)
    (place / "one.bin").write_bytes(os.urandom(10_000))
    (place / "inner" / "deep" / "two.bin").write_bytes(os.urandom(2_500))
    (place / "inner" / "empty").touch()
    return place


def _complete(place: Path) -> bool:
    return (place / ".kopt-staging" / "manifest.json").exists() and not (place / ".kopt-incomplete").exists()


def test_a_folder_is_copied_and_the_progress_says_so(source: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    place = tmp_path / "new" / "copy"
    staged(source, place, told, progress=tmp_path / "progress.json")
    assert content(place) == content(source)
    assert _complete(place)
    assert list(dict.fromkeys(one.phase for one in told)) == [
        Phase.LISTING,
        Phase.CHECKING,
        Phase.FETCHING,
        Phase.COMPLETE,
    ]
    written = Progress.from_dict(json.loads((tmp_path / "progress.json").read_text()))
    assert (written.phase, written.objects_done, written.bytes_done) == (Phase.COMPLETE, 3, 12_500)
    assert sorted(path.name for path in (place / ".kopt-staging").iterdir()) == [
        "lock",
        "manifest.json",
        "progress.json",
    ]


def test_a_mounted_claim_is_read_and_links_do_not_lead_out_of_it(source: Path, tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    (claims / "team-data").mkdir(parents=True)
    source.rename(claims / "team-data" / "set")
    (claims / "team-data" / "shared").write_bytes(b"shared")
    (claims / "team-data" / "set" / "link").symlink_to("../shared")
    staged("pvc://team-data/set", tmp_path / "copy", claims=claims)
    assert content(tmp_path / "copy")["link"] == b"shared"
    (claims / "team-data" / "set" / "token").symlink_to("/etc/hostname")
    with pytest.raises(StagingError, match="leads out of"):
        staged("pvc://team-data/set", tmp_path / "other", claims=claims)
    with pytest.raises(StagingError, match="not mounted"):
        staged("pvc://another/set", tmp_path / "other", claims=claims)


def test_a_copy_that_is_not_complete_is_no_source(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "claims" / "team" / "copy"
    _interrupted(source, place, 6)
    for inside in ("team/copy", "team/copy/inner"):
        (place / "inner").mkdir(exist_ok=True)
        (place / "inner" / "a").write_bytes(b"half")
        with pytest.raises(StagingError, match="is not complete") as caught:
            staged(f"pvc://{inside}", tmp_path / "second", claims=tmp_path / "claims")
        assert caught.value.reason is Trouble.BUSY, "it is tried again by itself"
    (place / "inner" / "a").unlink()
    staged(source, place)
    staged("pvc://team/copy", tmp_path / "second", claims=tmp_path / "claims")
    assert content(tmp_path / "second") == content(source)


def test_links_that_lead_nowhere_or_in_circles_are_left_out(source: Path, tmp_path: Path) -> None:
    (source / "circle").symlink_to("circle")
    (source / "gone").symlink_to("nothing")
    manifest = staged(source, tmp_path / "copy")
    assert "circle" not in content(tmp_path / "copy")
    assert [one.partition(" ")[0] for one in manifest.notes] == ["circle", "gone"]


def test_an_empty_file_is_compared_with_its_checksum(source: Path, tmp_path: Path) -> None:
    empty = source / "inner" / "empty"
    given = {"empty": Checksum("sha256", hashlib.sha256(b"all of it").hexdigest())}
    with pytest.raises(StagingError, match="its sha256 is not") as caught:
        staged(empty, tmp_path / "copy", checksums=given)
    assert caught.value.reason is Trouble.CORRUPT
    assert not _complete(tmp_path / "copy")
    staged(empty, tmp_path / "copy", checksums={"empty": Checksum("sha256", hashlib.sha256(b"").hexdigest())})


def test_names_that_a_disk_takes_for_one_are_told(source: Path, tmp_path: Path) -> None:
    (source / "ONE.bin").write_bytes(b"another")
    staged(source, tmp_path / "copy")
    place = tmp_path / "other"
    (place / ".kopt-staging").mkdir(parents=True)
    # As on a share that does not tell capitals from small letters.
    (place / ".kopt-staging" / "LOCK").touch()
    with pytest.raises(StagingError, match="are one file") as caught:
        staged(source, place)
    assert caught.value.reason is Trouble.BAD_NAME
    assert content(place) == {}


def test_files_are_open_as_long_as_they_are_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped: a file that is closed under it may be another's by the time it writes."""
    writes, closed, early, write, close = threading.Event(), set[int](), set[int](), fetching._write, os.close

    def slowly(file: int, piece: bytes, place: int, found: Any) -> None:
        writes.set()
        time.sleep(0.2)
        early.update(closed & {file})
        write(file, piece, place, found)

    monkeypatch.setattr(fetching, "_write", slowly)
    monkeypatch.setattr(os, "close", lambda file: (closed.add(file), close(file)))

    async def stopped() -> None:
        work = asyncio.create_task(stage(Source.parse(str(source)), tmp_path / "copy", StageSettings(part_bytes=1000)))
        await asyncio.to_thread(writes.wait)
        closed.clear()
        work.cancel()
        await asyncio.wait([work])

    asyncio.run(stopped())
    assert closed
    assert not early
    monkeypatch.undo()
    staged(source, tmp_path / "copy")
    assert content(tmp_path / "copy") == content(source)


def test_what_is_shorter_than_its_parts_never_gets_its_name(tmp_path: Path) -> None:
    with Folder.alone(tmp_path) as folder:
        folder.begin("any")
        for found in (None, b"half"):
            if found is not None:
                folder.partial("a").write_bytes(found)
            with pytest.raises((StagingError, OSError)):
                folder.settle("a", 10, executable=False)
    assert content(tmp_path) == {}


def test_a_copy_inside_of_another_that_is_not_complete_is_not_written_over(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    (source / "set").mkdir()
    (source / "set" / "big").write_bytes(os.urandom(10_000))
    _interrupted(source, place, 2)
    inner = tmp_path / "inner source"
    inner.mkdir()
    (inner / "big").write_bytes(b"of another copy")
    staged(inner, place / "set")
    with pytest.raises(StagingError, match="was not staged"):
        staged(source, place)
    assert content(place / "set") == {"big": b"of another copy"}


def test_an_object_that_changed_midway_and_then_went_leaves_nothing_of_its_first_version(
    source: Path, tmp_path: Path
) -> None:
    place = tmp_path / "copy"
    staged(source, place)
    with Folder.alone(place) as folder:
        folder.begin(str(source))
        Journal(folder.journal).drop("one.bin")
    (source / "one.bin").unlink()
    staged(source, place)
    assert content(place) == content(source)


def test_a_full_disk_is_told_before_it_is_full(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[4] = 1  # f_bavail
    monkeypatch.setattr(os, "statvfs", lambda place: os.statvfs_result(fields))
    with pytest.raises(StagingError, match="are still to come") as caught:
        staged(source, tmp_path / "copy")
    assert caught.value.reason is Trouble.NO_ROOM
    assert content(tmp_path / "copy") == {}


def test_a_disk_that_fills_up_meanwhile_stops_it_and_a_larger_one_goes_on(source: Path, tmp_path: Path) -> None:
    """A tmpfs of 8 MiB in a namespace of its own, which another file fills while 6 MiB come."""
    (source / "large.bin").write_bytes(os.urandom(6 << 20))
    space = tmp_path / "space"
    space.mkdir()
    script = (
        f"mount -t tmpfs -o size=8m full {space} || exit 77; "
        f'"$@" --limit 3MiB/s & work=$!; '
        f"while [ ! -s {space}/copy/.kopt-staging/journal ]; do sleep .05; kill -0 $work 2>/dev/null || break; done; "
        f"head -c 8m /dev/zero > {space}/other; wait $work; status=$?; cp {space}/copy/.kopt-staging/progress.json "
        f"{tmp_path}/first.json; rm {space}/other; ls -A {space}/copy > {tmp_path}/names; "
        f'"$@" || exit 3; cp -r {space}/copy {tmp_path}/result; exit $status'
    )
    words = [*KOPT, "stage", str(source), str(space / "copy"), "--part", "256KiB", "--parallel", "2"]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", *words], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no namespaces for mounts here: {done.stderr.strip()}")
    assert done.returncode == 1, done.stderr
    assert "is full" in done.stderr
    assert ".kopt-incomplete" in (tmp_path / "names").read_text()
    assert content(tmp_path / "result") == content(source)


def test_files_larger_than_may_be_are_told(source: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    # Python would keep what it compiles cut off at the limit, for everybody.
    done = run(source, tmp_path / "copy", variables={"PYTHONDONTWRITEBYTECODE": "1"}, preexec_fn=small_files)
    assert done.returncode == 1
    assert "larger than a file may be here" in done.stderr
    assert not _complete(tmp_path / "copy")
    assert run(source, tmp_path / "copy").returncode == 0


def test_two_stagers_do_not_share_a_destination(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    with Folder.alone(place):
        with pytest.raises(StagingError, match=f"process {os.getpid()} on") as caught:
            staged(source, place)
        assert caught.value.reason is Trouble.BUSY
        assert not (place / ".kopt-staging" / "progress.json").exists(), "the other one's progress was written over"
    staged(source, place)


def test_strangers_and_other_copies_are_not_written_over(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    place.mkdir()
    (place / "one.bin").write_text("mine")
    with pytest.raises(StagingError, match="was not staged"):
        staged(source, place)
    assert content(place) == {"one.bin": b"mine"}
    (place / "one.bin").rename(place / "own.txt")
    staged(source, place)
    assert content(place) == content(source) | {"own.txt": b"mine"}
    other = tmp_path / "other"
    other.mkdir()
    (other / "three.bin").write_bytes(b"3")
    with pytest.raises(StagingError, match="holds a copy of"):
        staged(other, place)
    staged(other, place, replace=True)
    assert content(place) == {"three.bin": b"3", "own.txt": b"mine"}
    assert not (place / "inner").exists()
    (other / "three.bin").unlink()
    (other / "three.bin").mkdir()
    (other / "three.bin" / "four").write_bytes(b"4")
    staged(other, place)
    assert content(place) == {"three.bin/four": b"4", "own.txt": b"mine"}


def test_links_in_the_destination_are_not_followed(source: Path, tmp_path: Path) -> None:
    place, outside = tmp_path / "copy", tmp_path / "outside"
    place.mkdir()
    outside.mkdir()
    (place / "inner").symlink_to(outside)
    with pytest.raises(StagingError, match="is a link"):
        staged(source, place)
    assert list(outside.iterdir()) == []


def _interrupted(source: Path, place: Path, parts: int) -> None:
    """A run that is killed once so many parts are there."""
    words = [*KOPT, "stage", str(source), str(place), "--part", "1000", "--limit", "4KiB/s", "--parallel", "1"]
    running = spawn(words, stderr=subprocess.DEVNULL)
    journal = place / ".kopt-staging" / "journal"
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= parts, what="parts are there")
    running.send_signal(signal.SIGKILL)
    running.wait()


def test_a_torn_journal_costs_its_torn_parts_only(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    _interrupted(source, place, 6)
    journal = place / ".kopt-staging" / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:20] + b"\xff" + lines[1][21:]
    journal.write_bytes(b"\0\0garbage\n" + b"".join(lines[:-1]) + lines[-1][:30])
    told: list[Progress] = []
    staged(source, place, told)
    assert content(place) == content(source)
    # Parts of a thousand bytes, one of which may be the last of a file.
    assert (len(lines) - 3) * 1000 < told[-1].bytes_kept <= (len(lines) - 2) * 1000


def test_parts_that_are_not_on_the_disk_as_the_journal_says_come_again(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    _interrupted(source, place, 6)
    partial = max((place / ".kopt-staging" / "partial").iterdir(), key=lambda path: path.stat().st_size)
    with partial.open("r+b") as file:
        file.write(b"rotten")
    staged(source, place)
    assert content(place) == content(source)


def test_a_signal_ends_it_with_a_word_and_the_next_run_goes_on(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    words = [*KOPT, "stage", str(source), str(place), "--part", "1000", "--limit", "4KiB/s"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running:
        journal = place / ".kopt-staging" / "journal"
        wait_for(lambda: journal.exists() and b"\n" in journal.read_bytes(), what="a part is there")
        running.terminate()
        told = running.communicate(timeout=60)[1]
    assert running.returncode == 1
    assert "stopped; run again" in told
    assert json.loads((place / ".kopt-staging" / "progress.json").read_text())["reason"] == "Stopped"
    staged(source, place)
    assert _complete(place)


def test_damage_is_found_told_and_mended(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "copy"
    staged(source, place)
    assert asyncio.run(verify(place)) == []
    with (place / "one.bin").open("r+b") as file:
        file.seek(5_500)
        file.write(b"rotten")
    (place / "inner" / "empty").unlink()
    assert asyncio.run(verify(place)) == [
        Damage("inner/empty", "is not there"),
        Damage("one.bin", "1 of 10 parts differ from what was fetched"),
    ]
    told = run("--verify", place)
    assert told.returncode == 1
    assert "inner/empty" in told.stdout
    assert not _complete(place), "a damaged copy is taken for complete"
    staged(source, place)
    assert content(place) == content(source)
    assert run("--verify", place).returncode == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"schema": "kopt-staging/1"}', b"\xff\xfe"])
def test_a_damaged_manifest_is_none(source: Path, tmp_path: Path, damage: bytes) -> None:
    place = tmp_path / "copy"
    staged(source, place)
    (place / ".kopt-staging" / "manifest.json").write_bytes(damage)
    with pytest.raises(StagingError, match="no manifest"):
        asyncio.run(verify(place))


def test_a_destination_that_may_not_be_written_is_told(source: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = run(source, blocked / "copy")
    assert done.returncode == 1
    assert str(blocked) in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there is nothing at" in run(empty, tmp_path / "copy").stderr
    with pytest.raises(StagingError, match="more than 2 objects"):
        staged(source, tmp_path / "copy", most_objects=2)
