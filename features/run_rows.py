"""Rows of the feature store of runs: what the jobs of a class, a name, a queue, a size and a cluster have shown by a
moment, and how a model's answers about a queue and a name have held.

A row is a ``GroupState`` or a ``Calibration``; ``job_history.described`` makes a job's features of the rows that are
known when it starts, in training and in serving alike.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.reason import Reason
from kopt.core.units import format_span
from kopt.core.workload.run_time import LEVELS, JobKind, JobRun
from kopt.features.job_history import GroupState, JobHistory, Key, in_order, keys_of

TTL_S = 7 * 86_400.0
"""Where nothing has started or ended for so long, what is stored is stale: somebody has stopped sending."""
MOST_BEHIND = 100
"""Starts and ends that may be known and not be stored yet, as those that are being written; with more of them the runs
themselves are read."""
LATEST_S = 7_258_118_400.0
"""2200-01-01T00:00:00Z."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Whose runs, and of which cluster."""

    owner: str
    name: str

    def entity(self, *parts: str | int) -> str:
        """The key of a row; any names, and never those of another cluster."""
        return json.dumps([self.owner, self.name, *parts], ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a model's answers have held: ``offsets`` of its quantiles in a queue (log units; 7), its loss by that of the
    last runs alone over ``compared`` runs (NaN before enough has ended), whether it has drifted by that, and, of a
    name, how much the last runs count beside it (NaN for a queue)."""

    offsets: tuple[float, ...] = (0.0,) * len(LEVELS)
    compared: int = 0
    loss_ratio: float = math.nan
    has_drifted: bool = False
    recent_share: float = math.nan


@dataclass(frozen=True)
class RunRows:
    """Rows to store of a cluster, as of ``known_s`` (Unix seconds): groups by key, and calibrations by model version
    and key. ``change``: the number of the last start or end that they know."""

    cluster: Cluster
    known_s: float
    change: int
    groups: Mapping[Key, GroupState]
    calibrations: Mapping[tuple[str, Key], Calibration] = field(default_factory=dict)

    def after(self, earlier: "RunRows") -> "RunRows":
        """With what ``earlier`` rows of the cluster have besides."""
        return RunRows(
            self.cluster,
            max(self.known_s, earlier.known_s),
            max(self.change, earlier.change),
            {**earlier.groups, **self.groups},
            {**earlier.calibrations, **self.calibrations},
        )


@dataclass(frozen=True)
class OnlineRuns:
    """The newest rows of a cluster that were asked for; what is absent has none. ``known_s`` and ``change`` are those
    of the last write, NaN and 0 before the first."""

    known_s: float
    change: int
    groups: Mapping[Key, GroupState]
    calibrations: Mapping[tuple[str, Key], Calibration]

    def problem(self, change: int, at_s: float) -> Reason | None:
        """Why they are not all that is known: ``NO_FEATURES`` or ``STALE_FEATURES``. ``change`` is the number of the
        last start or end that is known, ``at_s`` when it is asked (Unix seconds)."""
        if math.isnan(self.known_s):
            return Reason("NO_FEATURES", "No features of this cluster's runs are stored; its runs themselves are read.")
        behind, age_s = change - self.change, at_s - self.known_s
        if behind > 0:
            text = f"{behind:,} starts and ends that are known are not in the stored features yet."
            return Reason("STALE_FEATURES", text, {"behind": behind})
        if age_s > TTL_S:
            text = (
                f"The last start or end that is known is {format_span(age_s)} old, more than {format_span(TTL_S)}; see "
                f"whether the runs controller still sends them."
            )
            return Reason("STALE_FEATURES", text, {"age_s": age_s})
        return None

    def is_usable(self, change: int) -> bool:
        """Whether they may answer; else the runs themselves are read."""
        return not math.isnan(self.known_s) and change - self.change <= MOST_BEHIND


def states_over_time(runs: Sequence[JobRun], since_s: float = -math.inf) -> Iterator[tuple[float, Key, GroupState]]:
    """Every state of every group from ``since_s`` on, with the time from when on it was known, in that order: a run's
    end counts from its end on. Of several events at one time a group has the last one's state. What groups had shown
    before stands at ``since_s``."""
    history = JobHistory()
    touched: dict[Key, None] = {}
    now_s = -math.inf
    for time_s, has_ended, run in in_order(runs):
        if time_s > now_s and now_s >= since_s:
            yield from ((now_s, key, state) for key, state in history.states(touched).items())
            touched = {}
        elif time_s >= since_s > now_s:
            yield from ((since_s, key, state) for key, state in history.states(touched).items())
            touched = {}
        now_s = time_s
        (history.end if has_ended else history.start)(run)
        touched |= dict.fromkeys(keys_of(run.kind))
    yield from ((max(now_s, since_s), key, state) for key, state in history.states(touched).items())


def keys_of_all(kinds: Iterable[JobKind]) -> tuple[Key, ...]:
    """The groups of several kinds of jobs, each once."""
    return tuple(dict.fromkeys(key for kind in kinds for key in keys_of(kind)))
