"""How long downloads have made no progress, as observed by this process: a new leader starts the time anew."""

from dataclasses import dataclass

from kopt.controllers.staging.snapshot import StagingSnapshot
from kopt.controllers.staging.views import DownloadJob
from kopt.core.staging.staged_data import Amounts
from kopt.core.units import format_bytes
from kopt.policies.staging.copies import Run, Verb
from kopt.policies.staging.rules import StagingRules


@dataclass(frozen=True)
class _Timing:
    """``amounts`` as they are since ``since_s``; None without progress in the pod's log. It runs since ``begun_s``."""

    amounts: Amounts | None
    since_s: float
    begun_s: float


class Steps:
    """Call ``observe`` at every reconcile, then ask which Jobs have ``stalled``."""

    def __init__(self, rules: StagingRules) -> None:
        self._rules = rules
        self._timings: dict[str, _Timing] = {}
        self._stalled: dict[str, str] = {}

    def observe(self, snapshot: StagingSnapshot, now_s: float, pending: int = 0) -> None:
        """``pending``: how many others could begin if there were slots; so many give theirs up after the longest time.

        Progress alone keeps no slot for ever: a source that sends a byte now and then always makes some.
        """
        under_way = {job.uid: run for of in snapshot.jobs.values() for job, run in of.values() if _has_a_slot(run)}
        self._timings = {uid: self._after(uid, run.amounts, now_s) for uid, run in under_way.items()}
        self._stalled = {uid: why for uid, item in self._timings.items() if (why := self._why(item, now_s))}
        oldest = sorted(self._timings, key=lambda uid: (self._timings[uid].begun_s, uid))
        for uid in oldest[:pending]:
            if now_s - self._timings[uid].begun_s >= self._rules.longest_s:
                self._stalled.setdefault(uid, self._its_time_is_over())

    def stalled(self, job: DownloadJob | None) -> str:
        """Why a Job loses its slot; empty while it keeps it."""
        return self._stalled.get(job.uid, "") if job is not None else ""

    def _after(self, uid: str, amounts: Amounts | None, now_s: float) -> _Timing:
        before = self._timings.get(uid)
        if before is None:
            return _Timing(amounts, now_s, now_s)
        if _done(before.amounts) != _done(amounts):
            return _Timing(amounts, now_s, before.begun_s)
        return before

    def _why(self, item: _Timing, now_s: float) -> str:
        limit_s = self._rules.stalled_s if item.amounts is not None else self._rules.longest_s
        if now_s - item.since_s < limit_s:
            return ""
        if item.amounts is None:
            return self._its_time_is_over()
        done = format_bytes(item.amounts.bytes_done)
        return f"it stands at {done} for {limit_s / 60:.0f} min; others have their turn, then it resumes where it was"

    def _its_time_is_over(self) -> str:
        hours = self._rules.longest_s / 3600
        return f"it has run for {hours:.0f} h; others have their turn, then it resumes where it was"


def _has_a_slot(run: Run) -> bool:
    return run.verb is Verb.STAGE and not run.ended and not run.pending_reason


def _done(amounts: Amounts | None) -> tuple[int, int] | None:
    return (amounts.bytes_done, amounts.objects_done) if amounts is not None else None
