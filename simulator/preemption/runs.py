"""The truth about a job that runs: when it writes checkpoints, what it has done, what killing it would lose."""

import bisect
from dataclasses import dataclass, field

from kopt.data.jobs.training import TraceJob
from kopt.simulator.preemption.behaviour import Habits


@dataclass(slots=True)
class Run:
    """One run of a job, from ``started_s`` until it ends or is killed; ``done_s`` of its work was done before.

    ``number`` counts its runs from 0, ``killed_s`` says when those before ended. A run after the first spends
    ``restart_s`` before it works.
    """

    index: int
    job: TraceJob
    habits: Habits
    started_s: float
    done_s: float = 0.0
    number: int = 0
    killed_s: tuple[float, ...] = ()
    begins_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    @property
    def ready_s(self) -> float:
        return self.started_s + (self.habits.restart_s if self.number else 0.0)

    @property
    def finishes_s(self) -> float:
        return self.ready_s + self.job.duration_s - self.done_s

    def _know(self, until_s: float) -> None:
        """All writes that begin before then."""
        manner = self.habits.manner
        while not self.begins_s or self.begins_s[-1] <= until_s:
            number = len(self.begins_s) + 7 * self.number
            last = self.begins_s[-1] if self.begins_s else self.ready_s
            write_s = self.habits.write_s * manner.writes[number % len(manner.writes)]
            interval_s = self.habits.interval_s * manner.intervals[number % len(manner.intervals)]
            self.begins_s.append(last + max(interval_s, 2 * self.habits.write_s))
            self.ends_s.append(self.begins_s[-1] + min(write_s, interval_s))

    def last_begun(self, at_s: float) -> int:
        """The number of the last write that has begun by then; -1 if none has."""
        self._know(at_s)
        return bisect.bisect_right(self.begins_s, at_s) - 1

    def last_durable(self, at_s: float) -> int:
        """The number of the last write that is complete by then; -1 if none is."""
        number = self.last_begun(at_s)
        while number >= 0 and self.ends_s[number] > at_s:
            number -= 1
        return number

    def writing(self, at_s: float) -> bool:
        number = self.last_begun(at_s)
        return number >= 0 and at_s < self.ends_s[number]

    def next_durable_s(self, at_s: float) -> float:
        """When the next checkpoint will be complete."""
        self._know(at_s + 4 * self.habits.interval_s)
        return self.ends_s[bisect.bisect_right(self.ends_s, at_s)]

    def durable_work_s(self, at_s: float) -> float:
        """Seconds of the job's work that survive if it is killed then. Savers that stop training save what is there."""
        number = self.last_durable(at_s)
        if number < 0:
            return self.done_s
        saved_s = self.begins_s[number] if self.habits.manner.asynchronous else self.ends_s[number]
        return self.done_s + saved_s - self.ready_s

    def lost_s(self, at_s: float) -> float:
        """Seconds, of all its GPUs, that killing it then costs: work that is not durable, and starting again."""
        work_s = at_s - self.ready_s + self.done_s - self.durable_work_s(at_s)
        wasted_s = at_s - self.started_s if at_s < self.ready_s else work_s
        return wasted_s + self.habits.restart_s

    def lost_gpu_s(self, at_s: float) -> float:
        return self.job.gpus * self.lost_s(at_s)
