"""What ``kopt stage`` says while it is at work, where there is no terminal."""

from kopt.cli.staging.view import Silence, TextView
from kopt.core.staging.manifest import Phase, Progress


def progress(phase: Phase, done: int = 0, total: int = 0, files: int = 0) -> Progress:
    return Progress(phase, "s3://data/tokens", 3, files, total, done, 0, 0.0, None, None, "", 0.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_source_that_is_silent_is_said_to_be() -> None:
    clock = Clock()
    silence = Silence(180, clock)
    assert silence.describe(progress(Phase.LISTING)) == ""
    clock.now_s = 42
    assert silence.describe(progress(Phase.LISTING)) == "; nothing has come for 42 s, asked again for 180 s"
    assert silence.describe(progress(Phase.CHECKING)) == ""
    assert silence.describe(progress(Phase.FETCHING, 1, 9)) == ""
    clock.now_s = 60
    assert "for 18 s" in silence.describe(progress(Phase.FETCHING, 1, 9))
    assert silence.describe(progress(Phase.FETCHING, 2, 9)) == ""


def test_lines_come_every_ten_seconds_and_at_once_when_fetching_begins() -> None:
    clock, told = Clock(), list[str]()
    said = TextView(Silence(180, clock), told.append, clock)
    said.listen(progress(Phase.LISTING))
    clock.now_s = 11
    said.listen(progress(Phase.LISTING))
    said.listen(progress(Phase.CHECKING))
    clock.now_s = 12
    said.listen(progress(Phase.FETCHING, 0, 4 << 20))
    for _ in range(9):
        clock.now_s += 1
        said.listen(progress(Phase.FETCHING, 1 << 20, 4 << 20))
    assert told == [
        "listing s3://data/tokens; nothing has come for 11 s, asked again for 180 s",
        "0 B of 4.0 MiB, 0 of 3 files, 0 B/s",
    ]
    clock.now_s += 2
    said.listen(progress(Phase.FETCHING, 2 << 20, 4 << 20))
    said.listen(progress(Phase.FAILED))
    assert told[2:] == ["2.0 MiB of 4.0 MiB, 0 of 3 files, 0 B/s"]


def test_a_quick_copy_ends_with_all_of_its_files() -> None:
    clock, told = Clock(), list[str]()
    said = TextView(Silence(180, clock), told.append, clock)
    said.listen(progress(Phase.FETCHING, 0, 4 << 20))
    said.listen(progress(Phase.COMPLETE, 4 << 20, 4 << 20, files=3))
    assert told == ["0 B of 4.0 MiB, 0 of 3 files, 0 B/s", "4.0 MiB of 4.0 MiB, 3 of 3 files, 0 B/s"]


def test_what_is_there_already_is_not_said_to_be_fetched() -> None:
    clock, told = Clock(), list[str]()
    TextView(Silence(180, clock), told.append, clock).listen(progress(Phase.COMPLETE, 4, 4, files=3))
    assert told == []
