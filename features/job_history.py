"""What is known of a cluster's jobs at a moment, and the features of a job that starts then.

Causal by construction: a run counts as finished from its end on. Until then only its age is known, so that a class
whose short runs have ended and whose long ones have not does not look short.
"""

import bisect
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kopt.core.workload.run_time import JobKind, JobRun

Array = NDArray[np.float64]
Key = tuple[str | int, ...]
RECENT = 20
"""Finished runs whose median is the base that all times are relative to."""
_KEPT, _NEIGHBOURS = 100, 6
ENDED_LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 1.0)
"""Of the quantiles that are kept of the last runs that ended: closer where few are longer."""
_BURSTS_S = (60.0, 600.0, 3_600.0, 86_400.0)
_LEAST_NAMED = 2
"""Finished runs from which on jobs of one name and user are a class of their own."""
NO_HISTORY_LOG_SECONDS = math.log(3_600.0)

_FINISHED = (
    "finished",
    "last",
    "second_last",
    "third_last",
    "median_5",
    "median_20",
    "low_20",
    "lower_20",
    "upper_20",
    "high_20",
    "span_20",
    "median_100",
    "low_100",
    "high_100",
    "fast_mean",
    "slow_mean",
    "since_end",
)
_RUNNING = ("running", "youngest_age", "oldest_age", "middle_age")
_STARTS = ("since_start", *(f"started_{int(window_s)}s" for window_s in _BURSTS_S))
_FULL = (*_FINISHED, *_RUNNING, *_STARTS)
_NEIGHBOUR = tuple(
    f"neighbour_{k}_{what}" for k in range(1, _NEIGHBOURS + 1) for what in ("duration", "age_if_running", "started")
)
_OWN = ("base", "gpus", "hour_of_day")
_SPAN = _FINISHED.index("span_20")
"""A difference already, so nothing is taken from it."""
_NONE = (math.nan, math.nan, math.nan)
FEATURES: tuple[str, ...] = (
    *_OWN,
    *(f"class_{name}" for name in (*_FULL, *_NEIGHBOUR)),
    *(f"queue_{name}" for name in (*_FULL, *_NEIGHBOUR)),
    *(f"gpus_{name}" for name in _FULL),
    *(f"all_{name}" for name in _FULL),
)
"""Names of the columns. Durations and ages are natural logarithms of seconds, less ``base``."""


GROUP_ARRAYS = (
    "finished",
    "running",
    "starts_s",
    "neighbour_starts_s",
    "neighbour_log_seconds",
    "recent_log_seconds",
    "ended_log_seconds",
)
"""What a group's state is stored as."""


@dataclass(slots=True)
class _Group:
    """The runs of one class: those that go on, and the last that ended."""

    finished: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    running: dict[str, float] = field(default_factory=dict)
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    latest: deque["_Run"] = field(default_factory=lambda: deque(maxlen=_NEIGHBOURS))
    count: int = 0
    fast: float = 0.0
    slow: float = 0.0
    last_end_s: float = -math.inf
    _ended: "tuple[tuple[float, ...], tuple[float, ...], EndedRuns] | None" = field(
        default=None, init=False, repr=False
    )
    """What a state has of the runs that ended; kept until another ends."""

    def start(self, run: "_Run") -> None:
        self.running[run.job] = run.started_s
        self.starts_s.append(run.started_s)
        self.latest.append(run)

    def stop(self, run: "_Run") -> None:
        """Interrupted: it says nothing of how long such runs are."""
        self.running.pop(run.job, None)
        if run in self.latest:
            self.latest.remove(run)

    def end(self, run: "_Run", ended_s: float) -> None:
        self.running.pop(run.job, None)
        value = run.log_seconds
        self.finished.append(value)
        self.fast = value if not self.count else self.fast + 0.3 * (value - self.fast)
        self.slow = value if not self.count else self.slow + 0.05 * (value - self.slow)
        self.count += 1
        self.last_end_s = max(self.last_end_s, ended_s)
        self._ended = None

    def ended(self) -> "EndedRuns":
        """How long the last runs took."""
        return self._of_ended()[2]

    def _of_ended(self) -> "tuple[tuple[float, ...], tuple[float, ...], EndedRuns]":
        if self._ended is None:
            values = list(self.finished)
            statistics = _statistics(values, self.count, self.fast, self.slow, self.last_end_s)
            quantiles = quantiles_of(sorted(values), ENDED_LEVELS) if values else ()
            self._ended = statistics, tuple(values[-RECENT:]), EndedRuns(len(values), quantiles)
        return self._ended

    def state(self) -> "GroupState":
        finished, recent, ended = self._of_ended()
        starts_s = list(self.running.values())
        return GroupState(
            finished,
            (float(len(starts_s)), *((starts_s[-1], starts_s[0], starts_s[len(starts_s) // 2]) if starts_s else _NONE)),
            tuple(self.starts_s),
            tuple(
                (run.started_s, math.nan if run.job in self.running else run.log_seconds)
                for run in reversed(self.latest)
            ),
            recent,
            ended.log_seconds,
        )


def _statistics(values: Sequence[float], count: int, fast: float, slow: float, last_end_s: float) -> tuple[float, ...]:
    if not values:
        return (0.0, *[math.nan] * (len(_FINISHED) - 1))
    n = len(values)
    last_5, last_20, every = sorted(values[-5:]), sorted(values[-RECENT:]), sorted(values)
    m = len(last_20)
    return (
        float(count),
        values[-1],
        values[-2] if n > 1 else math.nan,
        values[-3] if n > 2 else math.nan,
        last_5[len(last_5) // 2],
        last_20[m // 2],
        last_20[int(0.1 * m)],
        last_20[int(0.25 * m)],
        last_20[int(0.75 * m)],
        last_20[int(0.9 * m)],
        last_20[-1] - last_20[0],
        every[n // 2],
        every[int(0.1 * n)],
        every[int(0.9 * n)],
        fast,
        slow,
        last_end_s,
    )


@dataclass(frozen=True, slots=True)
class EndedRuns:
    """How long the last ``number`` runs of a group took: quantiles at ``ENDED_LEVELS`` of log seconds, none without
    runs."""

    number: int
    log_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group of jobs has shown by a moment, as it is stored; the features of a later moment follow from it.

    ``finished``: a value for each of the columns of runs that ended, in log seconds, their count first and the Unix
    seconds of the last end last. ``running``: their number, and the starts of the youngest, the oldest and the middle
    one. ``starts_s``: the last starts. ``neighbours``: start and log duration (NaN while it goes on) of the runs that
    started last, the newest first. ``recent``: log durations of the last runs that ended, the oldest first.
    ``ended_log_seconds``: their quantiles over more of them, as in ``EndedRuns``.
    """

    finished: tuple[float, ...] = (0.0, *[math.nan] * (len(_FINISHED) - 1))
    running: tuple[float, ...] = (0.0, *_NONE)
    starts_s: tuple[float, ...] = ()
    neighbours: tuple[tuple[float, float], ...] = ()
    recent: tuple[float, ...] = ()
    ended_log_seconds: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """Runs that ended."""
        return int(self.finished[0])

    def arrays(self) -> tuple[list[float], ...]:
        """As it is stored, in the order of ``GROUP_ARRAYS``."""
        neighbours = zip(*self.neighbours, strict=True) if self.neighbours else ((), ())
        each = (self.finished, self.running, self.starts_s, *neighbours, self.recent, self.ended_log_seconds)
        return tuple(list(values) for values in each)

    @classmethod
    def of_arrays(cls, arrays: Sequence[Sequence[float] | None]) -> "GroupState":
        """Of what ``arrays`` gave."""
        finished, running, starts_s, neighbour_starts_s, log_seconds, *ended = (tuple(each or ()) for each in arrays)
        return cls(finished, running, starts_s, tuple(zip(neighbour_starts_s, log_seconds, strict=True)), *ended)

    def ended(self) -> EndedRuns:
        """How long the last runs took."""
        return EndedRuns(min(_KEPT, self.count), self.ended_log_seconds)

    def base(self) -> float:
        """The median of the last runs that ended (log seconds)."""
        recent = sorted(self.recent)
        n = len(recent)
        return recent[n // 2] if n % 2 else (recent[n // 2 - 1] + recent[n // 2]) / 2

    def features(self, at_s: float, base: float) -> list[float]:
        return [*self._of_finished(at_s, base), *self._of_running(at_s, base), *self._of_starts(at_s)]

    def _of_finished(self, at_s: float, base: float) -> list[float]:
        if not self.count:
            return [0.0, *[math.nan] * 16]
        levels = [value if at == _SPAN else value - base for at, value in enumerate(self.finished[1:-1], 1)]
        return [math.log1p(self.count), *levels, _log_seconds(at_s - self.finished[-1])]

    def _of_running(self, at_s: float, base: float) -> list[float]:
        number, *starts_s = self.running
        if not number:
            return [0.0, math.nan, math.nan, math.nan]
        return [math.log1p(number), *(_log_seconds(at_s - started_s) - base for started_s in starts_s)]

    def _of_starts(self, at_s: float) -> list[float]:
        starts_s = self.starts_s
        if not starts_s:
            return [math.nan, 0.0, 0.0, 0.0, 0.0]
        bursts = [float(len(starts_s) - bisect.bisect_left(starts_s, at_s - window_s)) for window_s in _BURSTS_S]
        return [_log_seconds(at_s - starts_s[-1]), *bursts]

    def neighbour_features(self, at_s: float, base: float) -> list[float]:
        """The runs that started last, the newest first: how long each took, or its age if it goes on."""
        result: list[float] = []
        for started_s, log_seconds in self.neighbours:
            age = _log_seconds(at_s - started_s)
            result += (math.nan, age - base, age) if math.isnan(log_seconds) else (log_seconds - base, math.nan, age)
        return result + [math.nan] * (3 * (_NEIGHBOURS - len(self.neighbours)))


@dataclass(slots=True)
class _Run:
    job: str
    started_s: float
    log_seconds: float = math.nan
    """Of the whole run, once it has ended."""


@dataclass(frozen=True, slots=True)
class Described:
    """A job at a moment: its features (F,), the base that its time is relative to (log seconds), and where that is
    from: the level of the class and how many of its runs had ended."""

    features: Array
    base: float
    level: str
    finished: int


class JobHistory:
    """Runs in the order in which their starts and ends became known. Not safe for several threads."""

    def __init__(self) -> None:
        self._groups: dict[Key, _Group] = {}
        self._runs: dict[str, tuple[JobKind, _Run]] = {}

    def __len__(self) -> int:
        """Runs that go on."""
        return len(self._runs)

    def start(self, run: JobRun) -> None:
        """A job started; one that is known already is left as it is."""
        if run.job in self._runs:
            return
        entry = _Run(run.job, run.started_s)
        self._runs[run.job] = (run.kind, entry)
        for key in keys_of(run.kind):
            self._groups.setdefault(key, _Group()).start(entry)

    def end(self, run: JobRun) -> None:
        """A job ended, or was interrupted; its start need not have been seen. Raises ValueError without an end."""
        if run.ended_s is None:
            raise ValueError(f"job {run.job!r} has not ended")
        self.start(run)
        kind, entry = self._runs.pop(run.job)
        if run.interrupted:
            for key in keys_of(kind):
                self._groups[key].stop(entry)
            return
        entry.log_seconds = _log_seconds(run.ended_s - entry.started_s)
        for key in keys_of(kind):
            self._groups[key].end(entry, run.ended_s)

    def is_running(self, job: str) -> bool:
        return job in self._runs

    def running_in(self, queue: str) -> int:
        """Jobs of a queue that go on."""
        return len(self._groups.get(("queue", queue), _EMPTY).running)

    def describe(self, kind: JobKind, at_s: float) -> Described:
        """The features of a job that starts at ``at_s``."""
        groups, level = groups_of(kind, self._groups, _EMPTY)
        return described(kind, at_s, level, [group.state() for group in groups])

    def level_of(self, kind: JobKind) -> tuple[str, int]:
        """Whose last runs a job is described relative to, and how many of them had ended, as ``describe`` has it."""
        groups, level = groups_of(kind, self._groups, _EMPTY)
        named = zip(groups, (level, "queue", "gpus", "all"), strict=True)
        return next(((name, group.count) for group, name in named if group.count), ("none", 0))

    def recent_log_seconds(self, kind: JobKind) -> tuple[float, ...]:
        """Log durations of the last runs of its class that ended, the oldest first."""
        return tuple(groups_of(kind, self._groups, _EMPTY)[0][0].finished)

    def ended(self, kind: JobKind) -> tuple[EndedRuns, ...]:
        """Of its own class, its queue, its number of GPUs and all jobs: the nearest first."""
        groups, _ = groups_of(kind, self._groups, _EMPTY)
        return tuple(group.ended() for group in groups)

    def states(self, keys: Iterable[Key] | None = None) -> dict[Key, GroupState]:
        """What is stored of groups, of all by default; those without a run are absent."""
        wanted = self._groups if keys is None else [key for key in keys if key in self._groups]
        return {key: self._groups[key].state() for key in wanted}


def described(kind: JobKind, at_s: float, level: str, states: Sequence[GroupState]) -> Described:
    """The one transformation to features, for training and for serving: of the ``states`` of the job's own class (of
    ``level``), and of its queue, its number of GPUs and all jobs."""
    matching = next(
        ((state, name) for state, name in zip(states, (level, "queue", "gpus", "all"), strict=True) if state.count),
        None,
    )
    base = NO_HISTORY_LOG_SECONDS if matching is None else matching[0].base()
    row = [base, math.log2(max(1, kind.gpus)), at_s / 3600.0 % 24.0]
    for at, state in enumerate(states):
        row += state.features(at_s, base)
        if at < 2:
            row += state.neighbour_features(at_s, base)
    level, finished = ("none", 0) if matching is None else (matching[1], matching[0].count)
    return Described(np.array(row), base, level, finished)


_EMPTY = _Group()


class _Counted(Protocol):
    @property
    def count(self) -> int: ...


_G = TypeVar("_G", bound=_Counted)


def groups_of(kind: JobKind, groups: Mapping[Key, _G], absent: _G) -> tuple[tuple[_G, ...], str]:
    """A job's class and the wider groups, the nearest first, and the level of the class: ``name`` where enough runs of
    its name and user have ended."""
    named = groups.get(named_key(kind), absent) if kind.name else absent
    is_named = named.count >= _LEAST_NAMED
    own = named if is_named else groups.get(class_key(kind), absent)
    return (own, *(groups.get(key, absent) for key in _wider_keys(kind))), "name" if is_named else "class"


def class_key(kind: JobKind) -> Key:
    return ("class", kind.queue, kind.gpus)


def named_key(kind: JobKind) -> Key:
    return ("name", kind.queue, kind.gpus, kind.name, kind.user)


def _wider_keys(kind: JobKind) -> tuple[Key, Key, Key]:
    return ("queue", kind.queue), ("gpus", kind.gpus), ("all",)


def keys_of(kind: JobKind) -> Iterable[Key]:
    yield class_key(kind)
    if kind.name:
        yield named_key(kind)
    yield from _wider_keys(kind)


def _log_seconds(seconds: float) -> float:
    """The logarithm, of a second at least."""
    return math.log(max(1.0, seconds))


def quantiles_of(ordered: Sequence[float], levels: Sequence[float]) -> tuple[float, ...]:
    """Of values in ascending order, linear between them: what ``np.quantile`` answers to the last bit, for a hundred
    values in a tenth of its time. Raises IndexError without any."""
    last, result = len(ordered) - 1, []
    for level in levels:
        at = level * last
        below = int(at)
        share, low, high = at - below, ordered[below], ordered[min(below + 1, last)]
        result.append(high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share)
    return tuple(result)


def in_order(runs: Sequence[JobRun]) -> Iterable[tuple[float, bool, JobRun]]:
    """Starts and ends of runs by time: (time, whether it ended, run). At the same time ends come first, but for the end
    of a run that starts then."""
    ends = [
        (run.ended_s, 0 if run.ended_s > run.started_s else 2, at)
        for at, run in enumerate(runs)
        if run.ended_s is not None
    ]
    events = sorted([*ends, *((run.started_s, 1, at) for at, run in enumerate(runs))])
    for time_s, order, at in events:
        yield time_s, order != 1, runs[at]
