"""When lines of a job are passed over: only if reading at the rate would never catch up."""

import pytest

from kopt.agents.logtail.rate_limit import Pace, PaceSettings


class Log:
    """How much of it is left to read; time passes by hand."""

    def __init__(self, left: float) -> None:
        self.left, self.now_s = left, 0.0

    def behind(self) -> float:
        return self.left


def read(log: Log, pace: Pace, lines: int, *, printed_per_s: float, pause: float = 1.0) -> None:
    """Lines are read, and reading rests for as long as the rate asks; the rest takes ``pause`` times that."""
    log.left -= lines
    wait_s = pace.wait_s(lines)
    if wait_s <= 0:
        pace.anew()
        return
    pace.evaluate(log.behind)
    log.now_s += wait_s * pause
    log.left += wait_s * pause * printed_per_s
    pace.evaluate(log.behind, wait_s)


def paced(log: Log) -> Pace:
    settings = PaceSettings(lines_per_second=5000, burst=1000, patience_s=1.0, catch_up_s=30.0)
    return Pace(settings, lambda: log.now_s)


def test_a_job_that_prints_faster_than_it_is_read_is_passed_over() -> None:
    log = Log(20_000)
    pace = paced(log)
    for _ in range(20):
        read(log, pace, 1000, printed_per_s=6000)
    assert pace.hurried


def test_what_would_take_too_long_to_catch_up_is_passed_over() -> None:
    log = Log(1_000_000)
    pace = paced(log)
    for _ in range(20):
        read(log, pace, 1000, printed_per_s=0)
    assert pace.hurried


@pytest.mark.parametrize("pause", [1.0, 50.0])
def test_a_log_that_is_read_to_its_end_soon_is_not_whatever_a_rest_takes(pause: float) -> None:
    """A rest of 200 ms takes ten seconds when the machine has no processor to spare."""
    log = Log(100_000)
    pace = paced(log)
    while log.left > 1000:
        read(log, pace, 1000, printed_per_s=0, pause=pause)
        assert not pace.hurried


def test_what_is_printed_while_nothing_can_be_sent_does_not_count_against_the_job() -> None:
    log = Log(20_000)
    pace = paced(log)
    for _ in range(4):
        read(log, pace, 1000, printed_per_s=500)
    log.left += 60_000
    pace.anew()
    for _ in range(12):
        read(log, pace, 1000, printed_per_s=500)
        assert not pace.hurried
