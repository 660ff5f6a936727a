"""A log is read through all its files: nothing twice, nothing left out, whatever rotation does meanwhile."""

import gzip
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kopt.agents.logtail.log_reader import LogReader, Offset
from kopt.agents.logtail.rotated_files import container_series, plain_series


class Writer:
    """A program that writes lines into ``path``, and the ways in which its log is rotated."""

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, b""
        self._file = path.open("ab", 0)

    def write(self, lines: int = 1) -> None:
        for _ in range(lines):
            line = f"line {len(self.written)} of the log\n".encode()
            self._file.write(line)
            self.written += line

    def rename(self, reopen: bool = True) -> None:
        for n in range(8, 0, -1):
            for end in ("", ".gz"):
                old = self.path.with_name(f"{self.path.name}.{n}{end}")
                if old.exists():
                    old.rename(self.path.with_name(f"{self.path.name}.{n + 1}{end}"))
        self.path.rename(self.path.with_name(f"{self.path.name}.1"))
        if reopen:
            self.reopen()

    def reopen(self) -> None:
        self._file.close()
        self._file = self.path.open("ab", 0)

    def copy_and_truncate(self) -> None:
        shutil.copy2(self.path, self.path.with_name(f"{self.path.name}.1"))
        os.truncate(self.path, 0)

    def pack(self) -> None:
        old = self.path.with_name(f"{self.path.name}.1")
        if old.exists():
            packed = old.with_name(f"{old.name}.gz")
            packed.write_bytes(gzip.compress(old.read_bytes()))
            times = old.stat()
            os.utime(packed, ns=(times.st_atime_ns, times.st_mtime_ns))
            old.unlink()


def drain(trail: LogReader, limit: int = 1 << 16) -> bytes:
    found = b""
    while piece := trail.read(limit):
        found += piece
    return found


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "train.log")


def test_a_file_that_comes_later_is_read_then(tmp_path: Path) -> None:
    trail = LogReader(plain_series(tmp_path / "later" / "train.log"))
    assert trail.read(100) == b""
    (tmp_path / "later").mkdir()
    assert trail.read(100) == b""
    Writer(tmp_path / "later" / "train.log").write(3)
    assert drain(trail).count(b"\n") == 3


@pytest.mark.parametrize("limit", [7, 1 << 16])
def test_a_renamed_file_is_read_to_its_end_and_then_the_new_one(writer: Writer, limit: int) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(5)
    found = trail.read(limit)
    writer.rename(reopen=False)
    writer.write(5)
    found += drain(trail, limit)
    assert found == writer.written
    writer.reopen()
    assert trail.read(limit) == b""
    writer.write(2)
    assert found + drain(trail, limit) == writer.written


def test_what_came_before_the_successor_was_begun_is_read_first(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(1)
    found = drain(trail)
    look = trail._following

    def late() -> object:
        # Between the end that was seen and the look for a successor: the worst moment.
        monkeypatch.setattr(trail, "_following", look)
        writer.write(1)
        writer.rename()
        writer.write(1)
        return look()

    monkeypatch.setattr(trail, "_following", late)
    assert found + drain(trail) == writer.written


def test_several_rotations_between_two_looks(writer: Writer) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(3)
    found = trail.read(10)
    for _ in range(4):
        writer.rename()
        writer.write(3)
        os.utime(writer.path)
    assert found + drain(trail) == writer.written


def test_a_file_that_was_removed_while_it_was_read_is_read_to_its_end(writer: Writer) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(50)
    found = trail.read(10)
    writer.rename()
    writer.path.with_name("train.log.1").unlink()
    writer.write(1)
    assert found + drain(trail) == writer.written


def test_copied_and_truncated_it_goes_on_in_the_copy(writer: Writer) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(20)
    found = trail.read(100)
    writer.copy_and_truncate()
    writer.write(30)
    assert found + drain(trail) == writer.written
    assert not trail.cut


def test_emptied_without_a_copy_it_begins_again_even_if_it_has_grown_longer(writer: Writer) -> None:
    trail = LogReader(plain_series(writer.path))
    writer.write(2)
    drain(trail)
    os.truncate(writer.path, 0)
    before = len(writer.written)
    writer.write(20)
    assert drain(trail) == writer.written[before:]
    assert trail.cut


def test_a_place_survives_rotation_packing_and_truncation(tmp_path: Path) -> None:
    ways: list[Callable[[Writer], None]] = [
        lambda w: None,
        lambda w: w.rename(),
        lambda w: (w.rename(), w.pack()),
        lambda w: w.copy_and_truncate(),
        lambda w: (w.rename(), w.write(3), w.rename(), w.write(2)),
    ]
    for n, way in enumerate(ways):
        (tmp_path / str(n)).mkdir()
        writer = Writer(tmp_path / str(n) / "train.log")
        writer.write(40)
        trail = LogReader(plain_series(writer.path))
        found = trail.read(333)
        place = trail.offset_before(33)
        assert place is not None
        trail.close()
        way(writer)
        writer.write(4)
        again = LogReader(plain_series(writer.path), Offset.from_dict(place.to_dict()))
        assert found[:300] + drain(again) == writer.written, f"way {n}"
        assert not again.lost


def test_a_place_in_a_file_that_is_gone_is_said_to_be_lost(writer: Writer) -> None:
    trail = LogReader(plain_series(writer.path), Offset(1, 1000, 99))
    writer.write(3)
    assert drain(trail) == writer.written
    assert trail.lost


class Kubelet:
    """Rotates and packs a container's log as the kubelet does; ``restart`` begins the next one."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.written, self.restarts, self.rotations = folder, b"", 0, 0
        self._file = (folder / "0.log").open("ab", 0)

    def write(self, lines: int = 1) -> None:
        for _ in range(lines):
            line = f"2026-03-01T10:00:00.{len(self.written):09d}Z stdout F line\n".encode()
            self._file.write(line)
            self.written += line

    def rotate(self) -> None:
        self.rotations += 1
        name = self.folder / f"{self.restarts}.log"
        name.rename(self.folder / f"{self.restarts}.log.20260301-{self.rotations:06d}")
        self.reopen()

    def reopen(self) -> None:
        self._file.close()
        self._file = (self.folder / f"{self.restarts}.log").open("ab", 0)

    def restart(self) -> None:
        self.restarts += 1
        self.reopen()

    def pack(self) -> None:
        for path in sorted(self.folder.glob("*.log.*-*"))[:-1]:
            if path.suffix != ".gz":
                (path.with_name(path.name + ".tmp")).write_bytes(gzip.compress(path.read_bytes()))
                path.with_name(path.name + ".tmp").rename(path.with_name(path.name + ".gz"))
                path.unlink()


def test_a_container_is_read_through_restarts_rotations_and_packed_files(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "pod" / "trainer")
    for step in (kubelet.rotate, kubelet.restart, kubelet.rotate, kubelet.rotate, kubelet.pack, kubelet.restart):
        kubelet.write(5)
        step()
    kubelet.write(5)
    assert drain(LogReader(container_series(kubelet.folder))) == kubelet.written


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_events_loses_or_repeats_a_byte(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    kubelet = Kubelet(tmp_path / "pod" / "trainer")
    series = container_series(kubelet.folder)
    trail, found, kept = LogReader(series), b"", (0, None)

    def read() -> None:
        nonlocal found
        found += trail.read(generator.randint(1, 400))

    def keep() -> None:
        nonlocal kept
        back = generator.randint(0, 60)
        place = trail.offset_before(back)
        if place is not None:
            kept = (len(found) - back, place)

    def restart_the_agent() -> None:
        nonlocal found, trail
        length, place = kept
        trail.close()
        found, trail = found[:length], LogReader(series, place)

    steps = (
        [kubelet.write] * 6
        + [read] * 6
        + [keep] * 2
        + [kubelet.rotate, kubelet.restart, kubelet.pack, restart_the_agent]
    )
    for _ in range(150):
        generator.choice(steps)()
    kubelet.write()
    assert found + drain(trail) == kubelet.written


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_renames_loses_or_repeats_a_byte(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    writer = Writer(tmp_path / "train.log")
    trail, found = LogReader(plain_series(writer.path)), b""

    def read() -> None:
        nonlocal found
        found += trail.read(generator.randint(1, 200))

    def rotate() -> None:
        if writer.path.stat().st_size:
            writer.rename()

    for _ in range(100):
        generator.choice([writer.write, writer.write, writer.write, read, read, read, rotate, writer.pack])()
    writer.write()
    assert found + drain(trail) == writer.written
