"""Which files make one log, in which order, and where reading stands in them."""

import gzip
import os
import zlib
from pathlib import Path

import pytest

from kopt.agents.logtail.log_reader import LogReader, Offset
from kopt.agents.logtail.rotated_files import Generation, Series, container_series, plain_series


def put(path: Path, content: bytes = b"x\n", changed_s: int = 1000) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    os.utime(path, (changed_s, changed_s))
    return path


def names(series: Series) -> list[str]:
    return [generation.path.name for generation in series.files()]


# Which files.


def test_what_rotation_made_of_a_log_is_part_of_it_and_nothing_else(tmp_path: Path) -> None:
    parts = ["train.log", "train.log.1", "train.log.2.gz", "train.log-20260301", "train.log-20260302.gz"]
    parts += ["train.log.2026-03-03", "train.log-2026-03-03T10:00:00", "train.log.old", "train.log.bak"]
    others = [
        "other.log",
        "other.log.1",
        "train.logs",
        "train.log.txt",
        "train.log.1.tmp",
        "atrain.log",
        "train.log.gz",
    ]
    for number, name in enumerate([*parts, *others]):
        put(tmp_path / name, changed_s=1000 + number)
    assert names(plain_series(tmp_path / "train.log")) == [*parts[1:], "train.log"]


def test_older_files_come_first_and_the_one_that_is_written_last(tmp_path: Path) -> None:
    put(tmp_path / "a.log", changed_s=5)
    put(tmp_path / "a.log.1", changed_s=30)
    put(tmp_path / "a.log.2", changed_s=9)
    put(tmp_path / "a.log.3.gz", changed_s=100)
    files = plain_series(tmp_path / "a.log").files()
    assert [generation.path.name for generation in files] == ["a.log.2", "a.log.1", "a.log.3.gz", "a.log"]
    assert [generation.packed for generation in files] == [False, False, True, False]
    assert [generation.inode for generation in files] == [generation.path.stat().st_ino for generation in files]


def test_folders_and_pipes_are_no_files_of_a_log(tmp_path: Path) -> None:
    put(tmp_path / "a.log")
    (tmp_path / "a.log.1").mkdir()
    os.mkfifo(tmp_path / "a.log.2")
    (tmp_path / "a.log.3").symlink_to(tmp_path / "absent")
    assert names(plain_series(tmp_path / "a.log")) == ["a.log"]
    assert names(plain_series(tmp_path / "absent" / "a.log")) == []


def test_a_log_has_moved_on_when_another_file_has_its_name(tmp_path: Path) -> None:
    path = put(tmp_path / "a.log")
    series, inode = plain_series(path), path.stat().st_ino
    assert not series.moved_on(inode)
    assert series.moved_on(inode + 1)
    path.rename(tmp_path / "a.log.1")
    assert not series.moved_on(inode), "there is none yet"


def test_files_of_a_container_are_in_the_order_of_its_restarts_and_rotations(tmp_path: Path) -> None:
    order = [
        "0.log.20260301-000001.gz",
        "0.log.20260301-000002",
        "0.log",
        "2.log.20260228-000001",
        "2.log",
        "10.log",
    ]
    for name in reversed(order):
        put(tmp_path / name)
    for name in ("a.log", "1.log.tmp", "1.log.20260301", "1.log.20260301-000001.gz.tmp", "11.logs", "x11.log"):
        put(tmp_path / name)
    files = container_series(tmp_path).files()
    assert [generation.path.name for generation in files] == order
    assert [generation.packed for generation in files] == [True, False, False, False, False, False]
    assert [generation.inode for generation in files] == [(tmp_path / name).stat().st_ino for name in order]
    assert container_series(tmp_path / "absent").files() == []


@pytest.mark.parametrize("packed_first", [False, True])
def test_while_a_file_is_packed_the_plain_one_counts(
    tmp_path: Path, packed_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [put(tmp_path / "0.log.20260301-000001"), put(tmp_path / "0.log.20260301-000001.gz")]
    monkeypatch.setattr(Path, "iterdir", lambda folder: iter(paths[::-1] if packed_first else paths))
    assert names(container_series(tmp_path)) == ["0.log.20260301-000001"]


def test_a_container_has_moved_on_when_its_newest_file_is_another(tmp_path: Path) -> None:
    series = container_series(tmp_path)
    assert not series.moved_on(1)
    old, new = put(tmp_path / "0.log"), put(tmp_path / "1.log")
    assert series.moved_on(old.stat().st_ino)
    assert not series.moved_on(new.stat().st_ino)


# Where reading stands.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put(tmp_path / "a.log", bytes(range(256)) * 4)


def test_a_place_is_the_file_the_byte_and_a_checksum_of_what_stands_before_it(path: Path) -> None:
    reader, content, inode = LogReader(plain_series(path)), path.read_bytes(), path.stat().st_ino
    assert reader.offset_before(0) is None, "nothing was read"
    assert reader.read(100) == content[:100]
    assert reader.offset_before(0) == Offset(inode, 100, zlib.crc32(content[36:100]))
    assert reader.offset_before(30) == Offset(inode, 70, zlib.crc32(content[6:70]))
    assert reader.offset_before(60) == Offset(inode, 40, zlib.crc32(content[:40]))
    assert reader.offset_before(100) == Offset(inode, 0, 0)
    assert reader.offset_before(101) is None
    assert reader.read(50) == content[100:150]
    assert reader.offset_before(50) == Offset(inode, 100, zlib.crc32(content[36:100]))
    assert reader.offset_before(51) is None, "further back than what is known"


def test_a_place_is_written_as_three_numbers_and_read_again() -> None:
    place = Offset(3, 70, 12345)
    assert place.to_dict() == {"inode": 3, "offset": 70, "check": 12345}
    assert Offset.from_dict(place.to_dict()) == place
    assert Offset.from_dict({"inode": "3", "offset": 70.0, "check": 12345}) == place
    for broken in ({}, {"inode": 1, "offset": 2}, {"inode": None, "offset": 1, "check": 1}, {"inode": "x"}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Offset.from_dict(broken)


def test_no_more_is_read_at_once_than_is_asked_for(path: Path) -> None:
    reader = LogReader(plain_series(path))
    assert [len(reader.read(400)) for _ in range(4)] == [400, 400, 224, 0]


def test_what_is_not_read_yet_counts_over_all_files(path: Path) -> None:
    reader = LogReader(plain_series(path))
    assert reader.behind() == 0.0
    reader.read(100)
    assert reader.behind() == 924.0
    path.rename(path.with_name("a.log.1"))
    put(path, b"new\n" * 10)
    assert reader.behind() == 964.0
    reader.read(2000)
    assert reader.behind() == 40.0
    reader.read(30)
    assert reader.behind() == 10.0


def test_of_a_packed_file_nobody_knows_how_much_is_left(path: Path) -> None:
    put(path.with_name("a.log.1.gz"), b"old\n" * 100, changed_s=1)
    reader = LogReader(plain_series(path))
    assert reader.read(8) == b"old\nold\n"
    assert reader.behind() == 1024.0


@pytest.mark.parametrize("name", ["a.log.1", "a.log.1.gz"])
def test_from_a_place_in_an_older_file_reading_goes_on_there(path: Path, name: str) -> None:
    old = put(path.with_name(name), bytes(reversed(range(256))), changed_s=1)
    content = bytes(reversed(range(256)))
    for offset in (0, 5, 64, 65, 200, 256):
        check = zlib.crc32(content[max(0, offset - 64) : offset])
        reader = LogReader(plain_series(path), Offset(old.stat().st_ino, offset, check))
        rest = b""
        while piece := reader.read(1000):
            rest += piece
        assert rest == content[offset:] + path.read_bytes()
        assert not reader.lost


def test_a_place_is_looked_for_in_its_own_file_first_and_then_in_the_others(path: Path) -> None:
    same = path.read_bytes()
    old = put(path.with_name("a.log.1"), same, changed_s=1)
    place = Offset(path.stat().st_ino, 1000, zlib.crc32(same[936:1000]))
    assert LogReader(plain_series(path), place).read(5000) == same[1000:]
    reader = LogReader(plain_series(path), Offset(old.stat().st_ino, 1000, place.check))
    assert reader.read(5000) == same[1000:]
    assert reader.read(5000) == same
    unknown = LogReader(plain_series(path), Offset(1, 1000, place.check))
    assert unknown.read(10) == same[1000:1010]
    assert not unknown.lost


@pytest.mark.parametrize(("offset", "check"), [(1000, 1), (2000, 0), (1025, 0)])
def test_a_place_that_is_nowhere_is_lost_and_reading_begins_at_the_oldest(path: Path, offset: int, check: int) -> None:
    old = put(path.with_name("a.log.1"), b"old\n", changed_s=1)
    reader = LogReader(plain_series(path), Offset(path.stat().st_ino, offset, check))
    assert reader.read(5000) == old.read_bytes()
    assert reader.lost


def test_a_place_waits_for_files_that_are_not_there_yet(path: Path) -> None:
    content, place = path.read_bytes(), Offset(path.stat().st_ino, 1000, zlib.crc32(path.read_bytes()[936:1000]))
    away = path.rename(path.with_name("hidden"))
    reader = LogReader(plain_series(path), place)
    assert (reader.read(100), reader.lost, reader.behind()) == (b"", False, 0.0)
    away.rename(path)
    assert reader.read(100) == content[1000:]


def test_a_file_that_goes_between_the_listing_and_the_opening_is_looked_for_again(path: Path) -> None:
    gone = Generation(path.with_name("gone"), (0, ""), 7)
    listings = [[gone], [gone]]
    real = plain_series(path)
    series = Series(lambda: listings.pop() if listings else real.files(), real.moved_on)
    reader = LogReader(series, Offset(9, 2000, 1))
    assert (reader.read(100), reader.lost) == (b"", False)
    assert reader.read(100) == b""
    assert reader.read(100) == path.read_bytes()[:100]
    assert reader.lost, "the place that was asked for is still the one"


@pytest.mark.parametrize("rest", [b"", 100 * b"\xff"], ids=["torn", "spoiled"])
def test_a_torn_or_spoiled_packed_file_is_read_as_far_as_it_goes(path: Path, rest: bytes) -> None:
    content, gzipped = os.urandom(20_000).hex().encode(), zlib.compressobj(wbits=31)
    packed = path.with_name("a.log.1.gz")
    packed.write_bytes(gzipped.compress(content) + gzipped.flush(zlib.Z_FULL_FLUSH) + rest)
    os.utime(packed, (1, 1))
    reader, read = LogReader(plain_series(path)), b""
    while piece := reader.read(500):
        read += piece
    assert read.startswith(content[:4000])
    assert read.endswith(path.read_bytes())


def test_an_emptied_file_without_a_copy_is_read_from_its_beginning(path: Path) -> None:
    reader = LogReader(plain_series(path))
    reader.read(500)
    path.write_bytes(b"short\n")
    assert (reader.read(100), reader.cut) == (b"short\n", True)
    assert reader.offset_before(0) == Offset(path.stat().st_ino, 6, zlib.crc32(b"short\n"))


def test_in_a_copy_reading_goes_on_where_it_stood(path: Path) -> None:
    content, reader = path.read_bytes(), LogReader(plain_series(path))
    reader.read(500)
    put(path.with_name("a.log.1"), content + b"more\n", changed_s=1)
    put(path.with_name("a.log.2"), b"unlike" * 200, changed_s=2)
    os.truncate(path, 0)
    assert reader.read(5000) == content[500:] + b"more\n"
    assert not reader.cut
    inode = path.with_name("a.log.1").stat().st_ino
    assert reader.offset_before(0) == Offset(inode, 1029, zlib.crc32((content + b"more\n")[-64:]))


def test_a_successor_is_entered_only_once_it_holds_something(path: Path) -> None:
    reader = LogReader(plain_series(path))
    reader.read(5000)
    path.rename(path.with_name("a.log.1"))
    put(path, b"")
    assert reader.read(100) == b""
    with path.with_name("a.log.1").open("ab") as file:
        file.write(b"late\n")
    put(path, b"new\n")
    assert reader.read(100) == b"late\n"
    assert reader.read(100) == b"new\n"


def test_a_successor_of_a_single_byte_is_entered(path: Path) -> None:
    reader = LogReader(plain_series(path))
    reader.read(5000)
    path.rename(path.with_name("a.log.1"))
    put(path, b"\n")
    assert reader.read(100) == b"\n"


def test_a_successor_that_is_gone_before_it_is_looked_at_counts_for_nothing(path: Path) -> None:
    real, gone = plain_series(path), Generation(path.with_name("gone"), (9, ""), 7)
    reader = LogReader(Series(lambda: [*real.files(), gone], lambda inode: True))
    assert reader.read(5000) == path.read_bytes()
    assert (reader.read(100), reader.behind()) == (b"", 0.0)


def test_a_renamed_file_that_is_emptied_is_the_one_that_is_read_on(path: Path) -> None:
    reader = LogReader(plain_series(path))
    reader.read(500)
    put(path.rename(path.with_name("a.log.1")), b"rest\n", changed_s=1)
    put(path, b"new\n")
    assert (reader.read(100), reader.cut) == (b"rest\n", True)
    assert reader.read(100) == b"new\n"


def test_an_emptied_file_that_is_written_again_alike_is_no_copy_of_itself(path: Path) -> None:
    content, real = path.read_bytes(), plain_series(path)
    series = Series(lambda: [put(path, content)] and real.files(), real.moved_on)
    reader = LogReader(series)
    reader.read(500)
    os.truncate(path, 100)
    assert (reader.read(5000), reader.cut) == (content, True)


def test_a_file_that_was_packed_while_it_was_read_is_followed_by_those_after_it(path: Path) -> None:
    content, reader = path.read_bytes(), LogReader(plain_series(path))
    reader.read(5000)
    put(path.with_name("a.log.2.gz"), b"before\n", changed_s=1)
    put(path.with_name("a.log.1.gz"), content, changed_s=2)
    path.unlink()
    put(path, b"new\n", changed_s=3)
    assert reader.read(100) == b"new\n"
    assert reader.behind() == 0.0


def test_a_closed_trail_holds_no_file(path: Path) -> None:
    reader = LogReader(plain_series(path))
    reader.close()
    reader.read(10)
    file = reader._file
    assert file is not None
    reader.close()
    reader.close()
    assert file.closed
    assert reader.behind() == 0.0
