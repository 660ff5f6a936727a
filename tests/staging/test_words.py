"""Parts, names, sources and manifests, whatever they are made of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kopt.agents.staging.journal import Journal, PartLine, finished_parts
from kopt.agents.staging.troubles import of_source
from kopt.core.staging.manifest import (
    Checksum,
    Entry,
    Manifest,
    Phase,
    Progress,
    Source,
    SourceKind,
    Staged,
    StagingError,
    Trouble,
    manifest_json,
    manifest_of,
    part_count,
    part_ranges,
    redacted,
    safe_path,
)
from kopt.core.staging.staged_data import StageResult
from tests.staging.conftest import run

DIGEST = "ab" * 32


@given(st.integers(0, 10**6), st.integers(1, 10**6).filter(lambda part: part > 50))
def test_parts_cover_an_object_once_and_in_order(size: int, part: int) -> None:
    ranges = list(part_ranges(size, part))
    assert len(ranges) == part_count(size, part)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges)][: len(ranges)]
    assert all(0 < end - begin <= part for begin, end in ranges)
    assert (ranges[-1][1] if ranges else 0) == size


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "b\\c", "\0", "ü"])).map("/".join))
@example("../../etc/passwd")
@example("/etc/passwd")
@example("a/../../b")
@example("\ud800")
@example(".kopt-staging/manifest.json")
@example(".kopt-incomplete")
def test_a_name_is_refused_or_stays_inside(path: str) -> None:
    try:
        accepted = safe_path(path)
    except StagingError:
        return
    place = Path("/data/copy")
    assert place in (place / accepted).parents
    assert ".." not in Path(accepted).parts
    assert not accepted.startswith(".kopt-")
    assert accepted.isprintable() or all(ord(letter) > 31 for letter in accepted)


@pytest.mark.parametrize(
    ("text", "kind", "address", "revision"),
    [
        ("s3://bucket/a/b", SourceKind.S3, "s3://bucket/a/b", ""),
        ("gs://bucket", SourceKind.GCS, "gs://bucket", ""),
        ("az://container/x", SourceKind.AZURE, "az://container/x", ""),
        ("hf://o/n", SourceKind.HUB, "models/o/n", ""),
        ("hf://datasets/o/n@v1/a/b", SourceKind.HUB, "datasets/o/n/a/b", "v1"),
        ("hf://o/n@refs%2Fpr%2F1", SourceKind.HUB, "models/o/n", "refs/pr/1"),
        ("git+https://user:secret@host/a.git@v1", SourceKind.GIT, "https://user:secret@host/a.git", "v1"),
        ("git+ssh://git@host/a.git", SourceKind.GIT, "ssh://git@host/a.git", ""),
        ("pvc://claim/a", SourceKind.CLAIM, "claim/a", ""),
        ("pvc://claim//a/", SourceKind.CLAIM, "claim/a", ""),
        ("/data/a b", SourceKind.LOCAL, "/data/a b", ""),
        ("file:///data/a%20b", SourceKind.LOCAL, "/data/a b", ""),
    ],
)
def test_sources_are_read(text: str, kind: SourceKind, address: str, revision: str) -> None:
    assert Source.parse(text) == Source(kind, address, revision)
    assert "secret" not in str(Source.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3://",
        "ftp://host/x",
        "hf://onlyname",
        "hf://a/../b",
        "hf://a/b/../../c",
        "pvc://../x",
        "git+ext://sh -c x",
        "git+https://host/a@--upload-pack=x",
        "https:///path",
        "https://[x/y",
        "file://host/x",
        "s3://a\nb",
        "pvc://a/../b",
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(StagingError):
        Source.parse(text)


def test_texts_lose_their_secrets() -> None:
    told = redacted("GET https://me:pass@host/a?X-Amz-Signature=abc failed, also s3://b/c#frag")
    assert told == "GET https://host/a?… failed, also s3://b/c?…"


def test_messages_of_libraries_lose_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    monkeypatch.setenv("SHORT_KEY", "s")
    told = str(of_source(RuntimeError("GET https://u:p@h/x?sig=hidden with very-secret-value"), "s3://b/x", "s3"))
    assert "https://h/x?… with ***" in told
    assert not {"hidden", "very-secret-value", "u:p"} & set(told.split())


def test_passwords_go_whatever_is_in_them() -> None:
    assert redacted("https://me:p@ss@host/a and git+https://t@host/b@v1") == "https://host/a and git+https://host/b@v1"


@pytest.mark.parametrize("letter", ["a", "ü", "漢", "🜁", '"', "\\", "\udcff"])
def test_the_last_words_of_a_pod_fit_whatever_its_objects_are_called(letter: str) -> None:
    text = StageResult.failed(StagingError(f"{letter * 5000} is not there", Trouble.NOT_FOUND)).to_json()
    assert len(text.encode()) <= 4096, "the kubelet would cut it off"
    found = StageResult.from_json(text)
    assert found is not None
    assert found.reason is Trouble.NOT_FOUND
    assert found.message


def _manifest() -> dict[str, Any]:
    entry = Entry("a/b", 25, '"etag"', Checksum("sha256", DIGEST), 1.5, True)
    return Manifest("s3://b/c", (Staged(entry, 10, (DIGEST,) * 3),), 1_800_000_000.25, "main", ("note",)).to_dict()


def test_manifests_and_progress_come_back_as_they_were() -> None:
    document = json.loads(json.dumps(_manifest()))
    assert Manifest.from_dict(document).to_dict() == document
    for several in ([], document["entries"], [one | {"path": path} for one in document["entries"] for path in "ab"]):
        whole = Manifest.from_dict(document | {"entries": several})
        text = b"".join(manifest_json(whole)).decode()
        assert json.loads(text) == whole.to_dict()
        assert manifest_of(text) == whole
    progress = Progress(Phase.FAILED, "x", 1, 2, 3, 4, 5, 6.5, 7.5, Trouble.NO_ROOM, "full", 8.25)
    assert Progress.from_dict(json.loads(json.dumps(progress.to_dict()))) == progress


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("source"),
        lambda found: found.update(more=1),
        lambda found: found.update(schema="kopt-staging/2"),
        lambda found: found.update(staged_at=float("nan")),
        lambda found: found["entries"].append(found["entries"][0]),
        lambda found: found["entries"][0].update(path="../b"),
        lambda found: found["entries"][0].update(bytes=-1),
        lambda found: found["entries"][0].update(bytes=True),
        lambda found: found["entries"][0].update(parts=[DIGEST]),
        lambda found: found["entries"][0].update(parts=[DIGEST, DIGEST, "x"]),
        lambda found: found["entries"][0].update(parts=[1, 2, 3]),
        lambda found: found["entries"][0].update(part_bytes=0),
        lambda found: found["entries"][0].update(checksum="crc:1"),
    ],
)
def test_a_manifest_of_anything_else_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    document = _manifest()
    change(document)
    with pytest.raises(StagingError):
        Manifest.from_dict(document)


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Done"},
        {"phase": []},
        {"reason": "Because"},
        {"objects": -1},
        {"objects": "1"},
        {"schema": None},
        {"seconds_left": "soon"},
        {"message": None},
        {"more": 1},
    ],
)
def test_a_progress_of_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StagingError):
        Progress.from_dict(Progress(Phase.FETCHING, "x").to_dict() | change)


LINES = st.lists(
    st.builds(
        PartLine,
        st.sampled_from(["a", "b/c"]),
        st.just("v"),
        st.just(100),
        st.just(10),
        st.integers(0, 9),
        st.just(DIGEST),
    ),
    min_size=1,
    max_size=12,
)


@given(LINES, st.integers(0, 2000), st.binary(max_size=20))
def test_a_journal_cut_anywhere_names_only_what_was_told(
    tmp_path_factory: pytest.TempPathFactory, lines: list[PartLine], cut: int, garbage: bytes
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = Journal(path)
    for line in lines:
        journal.add(line)
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:cut] + garbage)
    told = {(one.path, one.index) for one in lines}
    found = {(name, index) for name, one in finished_parts(path, iter(())).items() for index in one.parts}
    assert found <= told
    complete = whole[:cut].count(b"\n")
    assert {(one.path, one.index) for one in lines[:complete]} <= found
    # What comes after a torn line is read.
    again = Journal(path)
    again.add(PartLine("new", "v", 100, 10, 0, DIGEST))
    again.close()
    assert finished_parts(path, iter(()))["new"].parts == {0: DIGEST}


def test_a_line_that_was_altered_counts_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add(PartLine("a", "v", 100, 10, 3, DIGEST))
    journal.close()
    whole = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(whole.replace(b" 3, ", b" 4, "))
    assert finished_parts(tmp_path / "journal", iter(())) == {}
    (tmp_path / "journal").write_bytes(whole)
    assert finished_parts(tmp_path / "journal", iter(()))["a"].parts == {3: DIGEST}


@pytest.mark.parametrize(
    ("words", "trouble"), [(["--limit", "0B/s"], Trouble.BAD_REQUEST), (["--checksums", "none"], Trouble.STOPPED)]
)
def test_whatever_ends_it_is_told_to_the_controller(tmp_path: Path, words: list[str], trouble: Trouble) -> None:
    result = tmp_path / "result"
    assert run(tmp_path, tmp_path / "copy", *words, "--result", result).returncode != 0
    told = StageResult.from_json(result.read_text())
    assert told is not None
    assert told.reason is trouble
    assert told.message
