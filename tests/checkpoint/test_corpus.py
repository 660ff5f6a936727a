"""The corpus of logs: what is recorded of a program, what follows from it, and that what is committed fits together."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarked import benchmark_module
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.checkpoint import LineLabel

corpus = benchmark_module("checkpoint_corpus.__main__")
labels = benchmark_module("checkpoint_corpus.labels")
manifest = benchmark_module("checkpoint_corpus.manifest")
recording = benchmark_module("checkpoint_corpus.recording")
truth = benchmark_module("checkpoint_corpus.truth")
Happened, RecordingError, Storage = recording.Happened, recording.RecordingError, recording.Storage
PAUSE_S = truth.PAUSE_S

UNIT = re.compile(r"^(?P<unit>ck-(?P<step>\d+)|last)")
WRITTEN, CLOSED, MOVED, GONE = Happened.WRITTEN, Happened.CLOSED, Happened.MOVED_HERE, Happened.GONE
FAILED, KILLED = Happened.FAILED, recording.KILLED


def events(*rows: tuple[float, str, Happened]) -> list[Any]:
    return [recording.FileEvent(at_s, path, happened) for at_s, path, happened in rows]


def spans(*rows: tuple[float, str, Happened]) -> list[tuple[str, float, float, int | None]]:
    return [(one.unit, one.start_s, one.end_s, one.step) for one in truth.writes_of(events(*rows), UNIT)]


def test_files_of_one_folder_are_one_checkpoint() -> None:
    assert spans(
        (1.0, "ck-5/a", WRITTEN),
        (1.2, "ck-5/a", CLOSED),
        (1.3, "ck-5/b", WRITTEN),
        (1.4, "log", WRITTEN),
        (2.9, "ck-5/b", CLOSED),
        (3.0, "ck-3/a", GONE),
        (9.0, "ck-10/a", WRITTEN),
        (9.1, "ck-10/a", CLOSED),
    ) == [("ck-5", 1.0, 2.9, 5), ("ck-10", 9.0, 9.1, 10)]


def test_a_file_that_is_open_keeps_its_checkpoint_open_however_long_it_rests() -> None:
    assert spans((1.0, "last", WRITTEN), (50.0, "last", CLOSED)) == [("last", 1.0, 50.0, None)]


def test_what_rests_and_is_touched_again_is_written_again() -> None:
    assert spans(
        (1.0, "last", WRITTEN), (1.1, "last", CLOSED), (1.1 + 2 * PAUSE_S, "last", WRITTEN), (9.0, "last", CLOSED)
    ) == [("last", 1.0, 1.1, None), ("last", 1.1 + 2 * PAUSE_S, 9.0, None)]


def test_a_checkpoint_that_is_named_by_its_step_may_rest_longer() -> None:
    rows = ((1.0, "ck-5/a", WRITTEN), (1.1, "ck-5/a", CLOSED), (1.9, "ck-5/b", WRITTEN), (2.0, "ck-5/b", CLOSED))
    assert spans(*rows) == [("ck-5", 1.0, 2.0, 5)]
    assert len(spans(*rows, (5.0, "ck-5/a", WRITTEN))) == 2


def test_a_checkpoint_that_is_moved_to_its_name_was_written_under_the_other() -> None:
    rows = events((1.0, "tmp", WRITTEN), (2.0, "tmp", CLOSED), (2.5, "tmp2", WRITTEN))
    moved = recording.FileEvent(2.1, "ck-7", MOVED, was="tmp")
    (write,) = truth.writes_of([*rows[:2], moved, rows[2]], UNIT)
    assert (write.unit, write.start_s, write.end_s, write.step) == ("ck-7", 1.0, 2.1, 7)


def completed(*rows: tuple[float, str, Happened]) -> list[tuple[str, bool]]:
    return [(one.unit, one.complete) for one in truth.writes_of(events(*rows), UNIT)]


def test_a_file_that_failed_leaves_its_checkpoint_incomplete_until_it_is_written_again() -> None:
    failed = ((1.0, "last", WRITTEN), (1.1, "last", FAILED), (1.2, "last", CLOSED))
    assert completed(*failed) == [("last", False)]
    assert completed(*failed, (1.3, "last", WRITTEN), (1.4, "last", CLOSED)) == [("last", False), ("last", True)]


def test_a_kill_leaves_incomplete_what_was_open() -> None:
    assert completed(
        (1.0, "ck-1", WRITTEN),
        (1.1, "ck-1", CLOSED),
        (1.2, "ck-2", WRITTEN),
        (1.3, KILLED, FAILED),
        (1.3, "ck-2", CLOSED),
    ) == [("ck-1", True), ("ck-2", False)]


def test_a_file_that_gets_its_name_while_it_is_open_is_no_longer_open_under_the_other() -> None:
    moved = recording.FileEvent(1.2, "ck-1/a", MOVED, was="ck-1/tmp")
    first = events((1.0, "ck-1/tmp", WRITTEN), (1.1, "ck-1/tmp", GONE))
    rest = events((1.3, "ck-1/a", CLOSED), (1.4, "ck-2/a", WRITTEN), (1.5, KILLED, FAILED))
    writes = truth.writes_of([*first, moved, *rest], UNIT)
    assert [(one.unit, one.complete) for one in writes] == [("ck-1", True), ("ck-2", False)]


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from(["ck-1", "ck-2/a", "ck-2/b", "x"]), st.sampled_from(Happened))
    )
)
def test_every_touch_of_a_checkpoint_lies_in_one_of_its_writes(rows: list[tuple[float, str, Happened]]) -> None:
    rows.sort(key=lambda row: row[0])
    writes = truth.writes_of(events(*rows), UNIT)
    for at_s, path, happened in rows:
        if path != "x" and happened not in (GONE, FAILED):
            assert [one for one in writes if path.startswith(one.unit) and one.start_s <= at_s <= one.end_s]
    for unit in ("ck-1", "ck-2"):
        mine = [one for one in writes if one.unit == unit]
        assert all(earlier.end_s < later.start_s for earlier, later in itertools.pairwise(mine))


def test_a_watched_folder_tells_of_files_in_folders_that_are_new(tmp_path: Path) -> None:
    watch = recording.FolderWatch(tmp_path)
    (tmp_path / "ck-1" / "shards").mkdir(parents=True)
    (tmp_path / "ck-1" / "shards" / "0").write_text("x")
    seen = list(watch.read(1.0))
    (tmp_path / "ck-1" / "shards" / "1").write_text("x")
    (tmp_path / "ck-1").rename(tmp_path / "ck-2")
    (tmp_path / "ck-2" / "shards" / "2").write_text("x")
    seen += watch.read(2.0)
    (tmp_path / "ck-2" / "shards" / "2").rename(tmp_path / "best")
    seen += watch.read(3.0)
    watch.close()
    told = [(one.at_s, one.path, one.happened, one.was) for one in seen]
    assert {(1.0, "ck-1/shards/0", WRITTEN, ""), (1.0, "ck-1/shards/0", CLOSED, "")} <= set(told)
    assert (2.0, "ck-1/shards/1", CLOSED, "") in told
    assert (2.0, "ck-2", MOVED, "ck-1") in told
    assert told[-2:] == [(3.0, "ck-2/shards/2", GONE, ""), (3.0, "best", MOVED, "ck-2/shards/2")]


PROGRAM = """
import pathlib, sys, time
print("step 1")
print("saving")
with open(pathlib.Path(sys.argv[1]) / "ck-1", "wb", buffering=0) as file:
    file.write(b"x" * 200_000)
    print("half", file=sys.stderr)
    file.write(b"x" * 200_000)
print("saved")
time.sleep(0.2)
print("step 2")
"""


def entry(tmp_path: Path, text: str) -> Any:
    (tmp_path / "program.py").write_text(text)
    return manifest.Entry(
        "x", str(tmp_path / "program.py"), "plain", "own", "{checkpoints}", UNIT.pattern, labels="plain_loop"
    )


def test_lines_stand_inside_the_writes_that_they_arrived_in(tmp_path: Path) -> None:
    program = entry(tmp_path, PROGRAM)
    seen = recording.record([sys.executable, *program.command], {}, Storage(bytes_per_s=3e5), 60)
    lines = truth.lines_of(seen)
    assert lines.texts == ("step 1", "saving", "half", "saved", "step 2")
    found, log = corpus.truth(program, seen, {})
    (write,) = found.writes
    assert (write.unit, write.step, write.by) == ("ck-1", 1, 3)
    assert write.after <= 2
    assert write.end_s - write.start_s >= 1.0
    assert log.decode().split() == " ".join(lines.texts).split()
    assert manifest.Record.from_json(found.to_json()) == found


FULL = """
import pathlib, sys
for step in (1, 2, 3, 4):
    print("saving", step)
    try:
        with open(pathlib.Path(sys.argv[1]) / f"ck-{step}", "wb", buffering=0) as file:
            while file.write(b"x" * 10_000) and file.tell() < 50_000:
                pass
    except OSError as error:
        print(error)
"""


def test_a_full_disk_is_told_of_by_the_program_and_by_the_record(tmp_path: Path) -> None:
    program = entry(tmp_path, FULL)
    seen = recording.record([sys.executable, *program.command], {}, Storage(full_every=3), 60)
    found, log = corpus.truth(program, seen, {})
    assert [(one.step, one.complete) for one in found.writes] == [(1, True), (2, True), (3, False), (4, True)]
    assert b"No space left on device" in log


SAVES = """
import pathlib, sys
for step in range(int(sys.argv[2]), 4):
    print("saving", step)
    (pathlib.Path(sys.argv[1]) / f"ck-{step}").write_bytes(b"x" * 200_000)
print("done")
"""


def test_a_program_is_killed_in_a_write_and_started_again_in_one_log(tmp_path: Path) -> None:
    program = entry(tmp_path, SAVES)
    path, folder = program.command
    restarts = str(manifest.PROGRAMS / "restarts.py")
    words = [sys.executable, restarts, "kill:2", path, folder, "1", ":::", path, folder, "2"]
    seen = recording.record(words, {}, Storage(bytes_per_s=1e6), 60)
    found, log = corpus.truth(program, seen, {})
    assert [(one.step, one.complete) for one in found.writes] == [(1, True), (2, False), (2, True), (3, True)]
    assert log.decode().split("\n") == ["saving 1", "saving 2", "saving 2", "saving 3", "done", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [("print('no such data'); raise SystemExit(3)", "ended with 3:\nno such data"), ("print(1)", "nothing matches")],
)
def test_a_program_that_fails_or_saves_nothing_gives_no_record(tmp_path: Path, text: str, message: str) -> None:
    program = entry(tmp_path, text)
    with pytest.raises(RecordingError, match=message):
        corpus.truth(program, recording.record([sys.executable, *program.command], {}, Storage(), 60), {})


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    program = entry(tmp_path, "import time; print('on'); time.sleep(600)")
    with pytest.raises(RecordingError, match="ended with -9"):
        recording.record([sys.executable, *program.command], {}, Storage(), 2)


def test_every_log_of_the_manifest_is_there_and_fits_its_record() -> None:
    records = {one.name: one for one in manifest.read_records()}
    assert set(records) == {one.name for one in manifest.read_manifest()}
    for one in records.values():
        count = len(labels.lines_in(one.read_log()))
        assert count == len(one.arrivals_ms)
        assert list(one.arrivals_ms) == sorted(one.arrivals_ms)
        assert one.writes
        for write in one.writes:
            assert 0 <= write.after <= write.by <= count
            assert write.start_s <= write.end_s


def test_the_corpus_holds_many_writes_in_few_bytes() -> None:
    records = manifest.read_records()
    writes = [write for one in records for write in one.writes]
    assert len(writes) >= 2500
    assert sum(not write.complete for write in writes) >= 30
    assert min(write.end_s - write.start_s for write in writes) < 0.01
    assert max(write.end_s - write.start_s for write in writes) > 2
    assert sum(path.stat().st_size for path in manifest.LOGS.iterdir()) < 6e6


def test_the_first_pattern_of_a_program_labels_a_line_then_those_of_all_programs() -> None:
    found = labels.labels_of(
        ["iter 3: loss 0.5, time 3ms=> done: ckpt_3.pt", " ", "Killed", "std::bad_alloc"], "plain_loop"
    )
    assert found == {1: "ckpt_end", 4: "oom"}
    with pytest.raises(KeyError):
        labels.labels_of([], "no such program")


def test_the_words_of_a_style_label_its_lines() -> None:
    texts = ["💾 stashing weights…", "🔥     7 │ loss 1.203 │ 980 tok/s", "💥 could not stash weights: [Errno 28]", "x"]
    assert labels.labels_of(texts, "style:emoji") == {1: "ckpt_begin", 2: "train_step", 3: "error"}
    texts = ['{"step": "3", "event": "checkpoint.commit"}', '{"event": "run.end"}']
    assert labels.labels_of(texts, "style:structlog") == {1: "ckpt_end", 2: "end"}


def test_the_code_in_a_traceback_belongs_to_the_error() -> None:
    texts = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    f(", "OSError: full", "  x"]
    assert list(labels.labels_of(texts, "plain_loop").values()) == ["error"] * 4


def test_every_label_is_what_the_patterns_say_now() -> None:
    entries = {one.name: one for one in manifest.read_manifest()}
    for one in manifest.read_records():
        assert one.labels == labels.labels_of(labels.lines_in(one.read_log()), entries[one.name].rules), one.name
        assert set(one.labels.values()) <= set(LineLabel)


# What people write when they speak of a checkpoint, in the languages of the corpus.
OF_SAVING = re.compile(
    r"(?i)\bsav(e|ed|es|ing)\b|checkpoint|snapshot|\bwr(ote|itten|iting)\b|speicher|sauvegard|guarda|сохран|保存"
)


def test_every_line_that_speaks_of_saving_has_a_label() -> None:
    for one in manifest.read_records():
        for number, text in enumerate(labels.lines_in(one.read_log()), 1):
            assert not OF_SAVING.search(text) or number in one.labels, f"{one.name}:{number}: {text}"


def test_no_log_tells_of_the_machine_it_was_recorded_on() -> None:
    log = b"saved /tmp/kopt-corpus-x_1a/checkpoints/a, /x/trainers/newest-0a/lib/python3.11/x.py:1 warns"
    assert corpus.anonymous(log) == b"saved /workspace/checkpoints/a, /opt/venv/lib/python3.11/x.py:1 warns"
    for one in manifest.read_records():
        assert corpus.anonymous(one.read_log()) == one.read_log()
