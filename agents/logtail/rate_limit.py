"""How many lines of one job are read: a job that prints without end must not drown the others, nor lag for good.

Lines beyond the rate wait, which loses nothing. Only when a job prints faster than its rate for good, so that reading
would never catch up, are lines passed over, all but those that speak of checkpoints and of ends. Line numbers go on
meanwhile: the endpoint sees the gap.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from kopt.agents.logtail.records import LogLine

_TELLING = re.compile(
    r"(?i)check.?point|ckpt|\bsav(?:e|ed|es|ing)\b|snapshot|state_dict|safetensors|writ(?:e|es|ing|ten)\b|wrote|persist"
    r"|resum|restor|load|out of memory|oom|error|exception|traceback|killed|abort|fail|signal|finish|complet|done\b"
)


@dataclass(frozen=True)
class PaceSettings:
    """Of one job."""

    lines_per_second: float = 2000.0
    burst: float = 10_000.0
    """Lines at once."""
    patience_s: float = 3.0
    """Lines have waited for so long before it is judged whether reading catches up."""
    catch_up_s: float = 30.0
    """What would take longer than this to catch up is passed over."""
    telling_per_second: float = 20.0
    """Of lines that are passed over, those that speak of checkpoints are sent up to this rate."""

    def __post_init__(self) -> None:
        if min(self.lines_per_second, self.burst, self.catch_up_s, self.telling_per_second) <= 0:
            raise ValueError("rates, bursts and spans must be positive")


class Bucket:
    """A token bucket that may go into debt: ``consume`` says how long to wait until it is paid."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at_s = burst, clock()

    @property
    def level(self) -> float:
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return self._tokens

    def consume(self, count: float) -> float:
        self._tokens = self.level - count
        return max(0.0, -self._tokens / self._rate)


class Pace:
    """One source's; sources of a job share its buckets. ``hurried`` is true while lines are passed over."""

    def __init__(self, settings: PaceSettings, clock: Callable[[], float], shared: "Pace | None" = None) -> None:
        self._settings = settings
        self._lines: Bucket = shared._lines if shared else Bucket(settings.lines_per_second, settings.burst, clock)
        telling = settings.telling_per_second
        self._telling: Bucket = shared._telling if shared else Bucket(telling, telling, clock)
        self._since: float | None = None
        """What there was to read when judging began."""
        self._rested_s = 0.0
        self.hurried = False

    def wait_s(self, lines: int) -> float:
        """How long the lines that were read have to be followed by none."""
        return self._lines.consume(lines)

    def evaluate(self, behind: Callable[[], float], rested_s: float = 0.0) -> None:
        """After lines that had to wait, and again once they have rested: does reading catch up? ``behind`` says how
        much there is to read yet, in whatever unit grows with it. Only what the rate made reading rest counts: on a
        busy machine a pause of milliseconds may last seconds, which says nothing of the job."""
        if self._since is None:
            self._since, self._rested_s = behind(), 0.0
            return
        self._rested_s += rested_s
        if self._rested_s < self._settings.patience_s:
            return
        unread = behind()
        gained = self._since - unread
        self.hurried = unread >= 1 and (gained <= 0 or unread * self._rested_s / gained > self._settings.catch_up_s)
        self._since, self._rested_s = unread, 0.0

    def anew(self) -> None:
        """Reading stood still for another reason than the rate, or had not to wait: what grew so far tells nothing."""
        self._since = None

    def caught_up(self) -> None:
        self.hurried, self._since = False, None

    def select(self, lines: list[LogLine]) -> list[int]:
        """Which of the lines that are passed over are sent all the same, by their index."""
        result = [n for n, line in enumerate(lines) if _TELLING.search(line.text)]
        room = max(0, int(self._telling.level))
        if result:
            result = result[:room]
            self._telling.consume(len(result))
        return result
