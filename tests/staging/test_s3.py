"""Staging from a real S3 server."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from controlplane.processes import Server, spawn, wait_for
from replicas import KOPT

from kopt.core.staging.manifest import StagingError, Trouble
from tests.staging.conftest import S3, SECRET, content, run, staged
from tests.staging.servers import Pipe

PART = 1 << 20


def _lines(place: Path) -> int:
    journal = place / ".kopt-staging" / "journal"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def test_objects_of_all_sizes_and_names_arrive(s3: S3, tmp_path: Path) -> None:
    objects = {
        "all/empty": b"",
        "all/one": b"x",
        "all/inner/of two parts": os.urandom(2 * PART),
        "all/strange %41 # + ü?.bin": os.urandom(PART + 1),
        "all/large": os.urandom(12 * PART + 7),
    }
    for key, value in objects.items():
        s3.put(key, value)
    s3.put("alligator", b"another prefix")

    manifest = staged("s3://data/all", tmp_path / "copy", part_bytes=PART)

    assert content(tmp_path / "copy") == {key.removeprefix("all/"): value for key, value in objects.items()}
    assert manifest.bytes == sum(map(len, objects.values()))
    assert staged("s3://data/all/one", tmp_path / "one").entries[0].entry.path == "one"
    assert run("--verify", tmp_path / "copy").returncode == 0


def test_after_a_kill_no_finished_part_is_fetched_again(s3: S3, tmp_path: Path, pipes: Callable[[int], Pipe]) -> None:
    whole = os.urandom(24 * PART)
    s3.put("killed/set.bin", whole)
    place, first, second = tmp_path / "copy", pipes(s3.port), pipes(s3.port)
    words = ["stage", "s3://data/killed", str(place), "--part", "1MiB", "--parallel", "4", "-o", "json"]
    slow = spawn(
        [*KOPT, *words, "--limit", "6MiB/s"], env={**os.environ, **s3.through(first.url)}, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: _lines(place) >= 8, what="eight parts are fetched")
    slow.send_signal(signal.SIGKILL)
    slow.wait()
    finished = _lines(place)
    assert content(place) == {}, "a file that is not whole has a name"
    assert run("--verify", place).returncode == 1

    done = run(*words[1:], variables=s3.through(second.url))

    assert done.returncode == 0, done.stderr
    assert content(place) == {"set.bin": whole}
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["phase"] == "Complete"
    assert last["bytes_kept"] == finished * PART
    # Headers and the listing are less than half a part.
    assert second.bytes < (24 - finished) * PART + PART // 2
    assert run("--verify", place).returncode == 0


def test_the_same_again_costs_a_listing(s3: S3, tmp_path: Path, pipes: Callable[[int], Pipe]) -> None:
    s3.put("again/set.bin", os.urandom(4 * PART))
    staged("s3://data/again", tmp_path / "copy", part_bytes=PART)
    pipe = pipes(s3.port)
    assert run("s3://data/again", tmp_path / "copy", variables=s3.through(pipe.url)).returncode == 0
    assert 0 < pipe.bytes < PART // 2


def test_only_what_changed_is_fetched_and_what_is_gone_goes(
    s3: S3, tmp_path: Path, pipes: Callable[[int], Pipe]
) -> None:
    place = tmp_path / "copy"
    for name in "abc":
        s3.put(f"next/{name}", os.urandom(3 * PART))
    before = staged("s3://data/next", place, part_bytes=PART)
    s3.put("next/b", b"new")
    s3.store.delete("next/c")
    pipe = pipes(s3.port)
    done = run("s3://data/next", place, "--part", "1MiB", variables=s3.through(pipe.url))
    assert done.returncode == 0, done.stderr
    assert pipe.bytes < PART
    assert set(content(place)) == {"a", "b"}
    assert content(place)["b"] == b"new"
    assert before.entries[0].parts


def test_an_object_that_changes_midway_stops_it_and_its_parts_go(
    s3: S3, tmp_path: Path, pipes: Callable[[int], Pipe]
) -> None:
    place = tmp_path / "copy"
    s3.put("moving/kept", os.urandom(PART))
    s3.put("moving/set.bin", os.urandom(24 * PART))
    words = [*KOPT, "stage", "s3://data/moving", str(place), "--part", "1MiB", "--limit", "6MiB/s", "--parallel", "2"]
    with subprocess.Popen(words, env={**os.environ, **s3.variables}, stderr=subprocess.PIPE, text=True) as slow:
        wait_for(lambda: _lines(place) >= 5, what="five parts are fetched")
        new = os.urandom(24 * PART)
        s3.put("moving/set.bin", new)
        told = slow.communicate(timeout=90)[1]
    assert slow.returncode == 1
    assert "changed at its source" in told
    assert set(content(place)) == {"kept"}
    progress = json.loads((place / ".kopt-staging" / "progress.json").read_text())
    assert (progress["phase"], progress["reason"]) == ("Failed", "SourceChanged")

    pipe = pipes(s3.port)
    assert run("s3://data/moving", place, "--part", "1MiB", variables=s3.through(pipe.url)).returncode == 0
    assert content(place)["set.bin"] == new
    assert 24 * PART < pipe.bytes < 25 * PART, "the kept object was fetched again, or parts of the old one were kept"


@pytest.mark.parametrize(
    ("change", "source", "trouble", "says"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret-value"}, "s3://data/x", Trouble.DENIED, "AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret-value"}, "s3://data/x/", Trouble.DENIED, "SignatureDoesNotMatch"),
        ({}, "s3://data/not-there", Trouble.EMPTY, "there is nothing at"),
        ({}, "s3://nobucket/x/", Trouble.NOT_FOUND, "NoSuchBucket"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://data/x", Trouble.UNREACHABLE, "could not be read"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_to_do(
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    source: str,
    trouble: Trouble,
    says: str,
) -> None:
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StagingError, match=says) as caught:
        staged(source, tmp_path / "copy", retry_s=0.5)
    assert caught.value.reason is trouble
    everything = str(caught.value) + (tmp_path / "copy" / ".kopt-staging" / "progress.json").read_text()
    assert SECRET not in everything
    assert "wrong-secret-value" not in everything


@pytest.mark.parametrize("part_bytes", [1_000, 1_000_000])
def test_an_object_that_is_not_what_its_md5_says_is_refused(s3: S3, tmp_path: Path, part_bytes: int) -> None:
    s3.put("rotten/set.bin", b"a" * 5000)
    with (s3.folder / "rotten" / "set.bin").open("r+b") as behind_the_servers_back:
        behind_the_servers_back.write(b"b")
    place = tmp_path / "copy"
    with pytest.raises(StagingError, match="its md5 is not") as caught:
        staged("s3://data/rotten", place, part_bytes=part_bytes)
    assert caught.value.reason is Trouble.CORRUPT
    assert content(place) == {}
    assert not list((place / ".kopt-staging" / "partial").iterdir())
    staged("s3://data/rotten", place, check_source=False)
    assert content(place)["set.bin"].startswith(b"ba")


def test_a_server_that_goes_away_and_comes_back_is_waited_for(
    s3: S3, tmp_path: Path, pipes: Callable[[int], Pipe]
) -> None:
    s3.put("broken/set.bin", os.urandom(16 * PART))
    place, pipe = tmp_path / "copy", pipes(s3.port)
    words = [*KOPT, "stage", "s3://data/broken", str(place), "--part", "1MiB", "--limit", "4MiB/s"]
    slow = Server("kopt-stage", words, tmp_path, s3.through(pipe.url))
    wait_for(lambda: _lines(place) >= 3, what="three parts are fetched")
    pipe.broken = True
    wait_for(lambda: pipe.refused >= 3, what="it tries again")
    pipe.broken = False
    wait_for(lambda: not slow.alive, what="it ends")
    assert (place / ".kopt-staging" / "manifest.json").exists(), slow.tail()
