"""Runs of one name told apart: a Job that was deleted and made anew is another run, with its own pods and epochs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.cost.metering import Milliseconds
from kopt.formats.joblog.epochs import Epoch
from kopt.policies.cost.epochs import distinct_epochs
from kopt.policies.cost.report import CostEvent

SHORT = 8
"""Of a UID so many characters are shown, and are enough to name a run."""


class RunError(ValueError):
    """There is no such run, or it cannot be priced; the message says why."""


@dataclass(frozen=True)
class Run:
    """``uid`` is that of what made its pods; empty for those of which it was not recorded, which count as one run."""

    uid: str
    events: tuple[CostEvent, ...]

    @property
    def start_ms(self) -> Milliseconds:
        return min(event.start_ms for event in self.events)

    @property
    def end_ms(self) -> Milliseconds:
        return max(event.end_ms for event in self.events)


def runs_of(events: Sequence[CostEvent]) -> tuple[Run, ...]:
    """Of the events behind a workload, by their begin."""
    by_uid: dict[str, list[CostEvent]] = {}
    for event in events:
        by_uid.setdefault(event.run, []).append(event)
    return tuple(sorted((Run(uid, tuple(several)) for uid, several in by_uid.items()), key=lambda run: run.start_ms))


def run_named(runs: Sequence[Run], uid: str = "") -> Run:
    """The latest, or the one whose UID begins so. Raises RunError."""
    if not runs:
        raise RunError("nothing was charged to it in this time")
    if not uid:
        return runs[-1]
    matching = [run for run in runs if run.uid.startswith(uid)]
    if len(matching) != 1:
        there = ", ".join(run.uid[:SHORT] or "(of unknown UID)" for run in runs)
        how_many = "several runs have" if matching else "no run has"
        raise RunError(f"{how_many} a UID that begins with {uid[:40]!r}; there are {there}")
    return matching[0]


def epochs_of_run(run: Run, runs: Sequence[Run], sources: Mapping[str, Sequence[Epoch]]) -> list[Epoch]:
    """Of a job's log, by source, those of one of its runs. A source names its pod, which is of one run; epochs of one
    that names no pod that was charged are of the run in whose time they began."""
    pods = {event.who.rpartition("/")[2]: event.uid for each in runs for event in each.events}
    own = {event.uid for event in run.events}
    result: dict[str, Sequence[Epoch]] = {}
    for source, epochs in sources.items():
        uid = _pod_uid(source, runs, pods)
        if uid:
            result[source] = epochs if uid in own else ()
        else:
            result[source] = [item for item in epochs if run.start_ms <= 1000 * item.start_s <= run.end_ms]
    return distinct_epochs(result)


def _pod_uid(source: str, runs: Sequence[Run], pods: Mapping[str, str]) -> str:
    """Of ``…/pod/container``; a pod whose name may come again is ``name@`` and the first characters of its UID."""
    pod, _, begin = source.rpartition("/")[0].rpartition("/")[2].partition("@")
    if not begin:
        return pods.get(pod, "")
    uids = (event.uid for run in runs for event in run.events if event.who.rpartition("/")[2] == pod)
    return next((uid for uid in uids if uid.startswith(begin)), "")
