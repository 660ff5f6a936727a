"""Staging one file by its URL: with ranges and without, interrupted, throttled, changed, protected."""

import hashlib
from pathlib import Path

import pytest
from controlplane.processes import free_port

from kopt.core.staging.manifest import Checksum, Progress, StagingError, Trouble
from tests.staging.conftest import content, run, staged
from tests.staging.servers import Served, Web

BODY = bytes(range(256)) * 100


def test_a_file_comes_in_parts_with_the_query_of_its_url(files: Web, tmp_path: Path) -> None:
    files.files["/sets/a b.bin"] = Served(BODY)
    manifest = staged(f"{files.url}/sets/a%20b.bin?signature=very-secret", tmp_path)
    assert content(tmp_path) == {"a b.bin": BODY}
    assert len(manifest.entries[0].parts) == 26
    assert all(path.endswith("?signature=very-secret") for path, _, _ in files.asked)
    for kept in (tmp_path / ".kopt-staging").iterdir():
        assert "very-secret" not in kept.read_text(), kept


def test_without_ranges_it_comes_whole(files: Web, tmp_path: Path) -> None:
    files.files["/set.bin"] = Served(BODY, ranges=False)
    manifest = staged(f"{files.url}/set.bin", tmp_path)
    assert content(tmp_path) == {"set.bin": BODY}
    assert len(manifest.entries[0].parts) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_an_empty_file_is_a_file(files: Web, tmp_path: Path, ranges: bool) -> None:
    files.files["/empty"] = Served(b"", ranges=ranges)
    staged(f"{files.url}/empty", tmp_path)
    assert content(tmp_path) == {"empty": b""}


def test_throttling_and_cut_connections_are_ridden_out(files: Web, tmp_path: Path) -> None:
    files.files["/set.bin"] = one = Served(BODY)
    one.busy, one.cut = 3, 5
    staged(f"{files.url}/set.bin", tmp_path, retry_s=30)
    assert content(tmp_path) == {"set.bin": BODY}


def test_a_server_that_stays_busy_is_given_up_with_a_word(files: Web, tmp_path: Path) -> None:
    files.files["/set.bin"] = Served(BODY, busy=10**6)
    with pytest.raises(StagingError, match=r"too busy.*503") as caught:
        staged(f"{files.url}/set.bin", tmp_path, retry_s=0.5)
    assert caught.value.reason is Trouble.UNREACHABLE


@pytest.mark.parametrize(
    ("scheme", "listening", "why"),
    [("http", False, "Connection refused"), ("https", True, "InvalidMessage InvalidContentType")],
)
def test_where_nobody_answers_that_is_said(files: Web, tmp_path: Path, scheme: str, listening: bool, why: str) -> None:
    address = files.url.partition("//")[2] if listening else f"127.0.0.1:{free_port()}"
    with pytest.raises(StagingError, match=f"no connection: {why}") as caught:
        staged(f"{scheme}://{address}/set.bin", tmp_path / "copy", retry_s=0.5)
    assert caught.value.reason is Trouble.UNREACHABLE


@pytest.mark.parametrize(
    ("status", "trouble"), [(401, Trouble.DENIED), (403, Trouble.DENIED), (404, Trouble.NOT_FOUND)]
)
def test_what_the_server_refuses_is_told_apart(files: Web, tmp_path: Path, status: int, trouble: Trouble) -> None:
    files.files["/set.bin"] = Served(BODY, status=status)
    with pytest.raises(StagingError) as caught:
        staged(f"{files.url}/set.bin?token=very-secret", tmp_path)
    assert caught.value.reason is trouble
    assert "very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("etag", "modified", "then"),
    [
        ('"one"', "", b"x" * len(BODY)),
        ("", "Sun, 22 Nov 2026 10:00:00 GMT", b"x" * len(BODY)),
        ("", "", BODY + b"more"),
    ],
)
def test_a_file_that_changes_midway_stops_it(files: Web, tmp_path: Path, etag: str, modified: str, then: bytes) -> None:
    files.files["/set.bin"] = Served(BODY, etag=etag, modified=modified, then=then)
    with pytest.raises(StagingError, match="changed at its source") as caught:
        staged(f"{files.url}/set.bin", tmp_path, parallel=1)
    assert caught.value.reason is Trouble.CHANGED
    assert content(tmp_path) == {}
    assert not list((tmp_path / ".kopt-staging" / "partial").iterdir())
    staged(f"{files.url}/set.bin", tmp_path)
    assert content(tmp_path) == {"set.bin": files.files["/set.bin"].content}


def test_without_etag_and_date_nothing_is_kept_for_the_next_run(files: Web, tmp_path: Path) -> None:
    files.files["/set.bin"] = Served(BODY, etag="")
    staged(f"{files.url}/set.bin", tmp_path)
    files.files["/set.bin"] = Served(BODY[::-1], etag="")
    staged(f"{files.url}/set.bin", tmp_path)
    assert content(tmp_path) == {"set.bin": BODY[::-1]}


def test_the_users_checksum_decides(files: Web, tmp_path: Path) -> None:
    files.files["/set.bin"] = Served(BODY)
    url = f"{files.url}/set.bin"
    refused = run(url, tmp_path / "bad", "--sha256", "0" * 64)
    assert refused.returncode == 1
    assert "its sha256 is not" in refused.stderr
    assert content(tmp_path / "bad") == {}
    right = hashlib.sha256(BODY).hexdigest()
    assert run(url, tmp_path / "good", "--sha256", right.upper()).returncode == 0
    sums = tmp_path / "SHA256SUMS"
    sums.write_text(f"{right} *set.bin\n")
    assert run(url, tmp_path / "listed", "--checksums", sums).returncode == 0
    with pytest.raises(StagingError, match="no 'other'"):
        staged(url, tmp_path / "other", checksums={"other": Checksum("sha256", right)})
    assert run(url, tmp_path / "wrong", "--sha256", "abc").returncode == 2


def test_the_limit_holds(files: Web, tmp_path: Path) -> None:
    """By the progress that a run tells, not by its wall time: never faster than the limit and its burst."""
    files.files["/set.bin"] = Served(b"x" * 3_000_000)
    told: list[Progress] = []
    staged(f"{files.url}/set.bin", tmp_path, told, limit_bytes_s=1_000_000.0, part_bytes=100_000)
    fetching = [one for one in told if one.phase == "Fetching"]
    assert len(fetching) >= 3
    begin = fetching[0]
    for one in fetching[1:]:
        assert one.bytes_done <= (one.updated_at - begin.updated_at + 0.5) * 1_000_000 + 8 * 131_072
