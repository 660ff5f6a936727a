"""A cluster that runs a trace: jobs queue for GPUs, urgent ones take the room of others by a policy's choice.

Every job needs so many GPUs of a pool; which node they are on is left out. Jobs start in the order of submission, those
that do not fit are passed over. Urgent jobs come first and are not pre-emptible; while one waits, no other job starts.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kopt.data.jobs.training import TraceJob
from kopt.simulator.preemption.behaviour import Habits
from kopt.simulator.preemption.rivals import Ask, Rival, newest_first
from kopt.simulator.preemption.runs import Run

_SUBMIT, _END, _ASK = 0, 1, 2


@dataclass(frozen=True)
class Scenario:
    """What is replayed: the jobs until ``ends_s``, of which those in ``urgent`` (by number) submitted after ``warm_s``
    are urgent. An urgent job sees ``pool`` of the pre-emptible jobs that run when it comes, drawn at random."""

    jobs: Sequence[TraceJob]
    habits: Sequence[Habits]
    urgent: frozenset[int]
    gpus: int
    pool: int
    warm_s: float
    ends_s: float
    seed: int = 0


@dataclass(frozen=True)
class Room:
    """Room that was made for one urgent job. ``native``: our policy had no victims, the scheduler's own rule chose."""

    waited_s: float
    lost_gpu_s: float
    victims: int
    torn: int
    native: bool = False


@dataclass
class Outcome:
    """Of one replay. ``waits_s``: of all urgent jobs that did not find room at once and got it.

    ``started`` counts pre-emptible jobs, ``no_room`` urgent ones left out because the pool could not free enough.
    """

    rooms: list[Room] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    started: int = 0
    no_room: int = 0


@dataclass
class _Urgent:
    index: int
    job: TraceJob
    since_s: float
    pool: tuple[int, ...] = ()
    order: dict[int, float] = field(default_factory=dict)


def replay(scenario: Scenario, rival: Rival) -> Outcome:
    """Run the scenario with one policy."""
    return _Cluster(scenario, rival).run()


class _Cluster:
    """The state of one replay."""

    def __init__(self, scenario: Scenario, rival: Rival) -> None:
        self.scenario, self.rival = scenario, rival
        self.free, self.now_s = scenario.gpus, 0.0
        self.events: list[tuple[float, int, int, int]] = []
        self.count = 0
        self.running: dict[int, Run] = {}
        self.unfinished: dict[int, tuple[float, tuple[float, ...]]] = {}
        self.queues: dict[int, list[int]] = {}
        self.urgents: dict[int, _Urgent] = {}
        self.outcome = Outcome()
        for index, job in enumerate(scenario.jobs):
            if job.gpus <= scenario.gpus:
                self._push(job.submitted_s, _SUBMIT, index)

    def _push(self, at_s: float, kind: int, what: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (at_s, kind, self.count, what))

    def run(self) -> Outcome:
        while self.events and self.events[0][0] <= self.scenario.ends_s:
            self.now_s, kind, _, what = heapq.heappop(self.events)
            if kind == _SUBMIT:
                self._submit(what)
            elif kind == _END:
                self._end(what)
            elif what in self.urgents:
                self._ask(self.urgents[what])
        return self.outcome

    def _submit(self, index: int) -> None:
        job = self.scenario.jobs[index]
        if index not in self.scenario.urgent or job.submitted_s < self.scenario.warm_s:
            heapq.heappush(self.queues.setdefault(job.gpus, []), index)
            self._start_pending()
        elif job.gpus <= self.free and not self.urgents:
            self._start(index)
        elif pool := self._pool(index):
            self.urgents[index] = _Urgent(index, job, self.now_s, *pool)
            self._ask(self.urgents[index])
        else:
            self.outcome.no_room += 1

    def _pool(self, index: int) -> tuple[tuple[int, ...], dict[int, float]] | None:
        """Candidates for an urgent job; None where even all of them together do not free enough."""
        chance = np.random.default_rng((self.scenario.seed, index)).random(len(self.scenario.jobs))
        order = {number: float(chance[number]) for number in self.running if number not in self.scenario.urgent}
        pool = tuple(sorted(order, key=order.__getitem__)[: self.scenario.pool])
        enough = sum(self.running[number].job.gpus for number in pool) >= self.scenario.jobs[index].gpus
        return (pool, {number: order[number] for number in pool}) if enough else None

    def _ask(self, urgent: _Urgent) -> None:
        first = next(iter(self.urgents)) == urgent.index
        missing = urgent.job.gpus - (self.free if first else 0)
        if missing <= 0:
            self._serve()
            return
        pool = [self.running[number] for number in urgent.pool if number in self.running]
        ask = Ask(str(urgent.index), self.now_s, urgent.since_s, missing, pool, urgent.order)
        answer = self.rival(ask)
        if answer.until_s is not None:
            self._push(max(answer.until_s, self.now_s + 0.001), _ASK, urgent.index)
            return
        native = not answer.victims
        if native:
            candidates = [run for run in pool if run.index not in answer.guarded]
            answer = newest_first(Ask(ask.name, ask.now_s, ask.since_s, missing, candidates, urgent.order))
        if answer.victims:
            self._make_room(urgent, answer.victims, native)
        else:
            self._push(self.now_s + 60.0, _ASK, urgent.index)

    def _make_room(self, urgent: _Urgent, victims: Sequence[Run], native: bool) -> None:
        lost = sum(run.lost_gpu_s(self.now_s) for run in victims)
        torn = sum(run.writing(self.now_s) for run in victims)
        for run in victims:
            self._kill(run)
        del self.urgents[urgent.index]
        waited_s = self.now_s - urgent.since_s
        self.outcome.rooms.append(Room(waited_s, lost, len(victims), torn, native))
        self.outcome.waits_s.append(waited_s)
        self._start(urgent.index)
        self._start_pending()

    def _kill(self, run: Run) -> None:
        self.unfinished[run.index] = (run.durable_work_s(self.now_s), (*run.killed_s, self.now_s))
        del self.running[run.index]
        self.free += run.job.gpus
        heapq.heappush(self.queues.setdefault(run.job.gpus, []), run.index)

    def _start(self, index: int) -> None:
        job = self.scenario.jobs[index]
        done_s, killed_s = self.unfinished.get(index, (0.0, ()))
        run = Run(index, job, self.scenario.habits[index], self.now_s, done_s, len(killed_s), killed_s)
        self.running[index] = run
        self.free -= job.gpus
        self._push(run.finishes_s, _END, index)
        if self.now_s >= self.scenario.warm_s and index not in self.scenario.urgent and not killed_s:
            self.outcome.started += 1

    def _end(self, index: int) -> None:
        run = self.running.get(index)
        if run is None or abs(run.finishes_s - self.now_s) > 1e-6:
            return
        del self.running[index]
        self.free += run.job.gpus
        self._serve()

    def _serve(self) -> None:
        """Room that came free: the urgent first, in their order."""
        for urgent in list(self.urgents.values()):
            if urgent.job.gpus > self.free:
                break
            del self.urgents[urgent.index]
            self.outcome.waits_s.append(self.now_s - urgent.since_s)
            self._start(urgent.index)
        self._start_pending()

    def _start_pending(self) -> None:
        while not self.urgents:
            fitting = [(queue[0], gpus) for gpus, queue in self.queues.items() if queue and gpus <= self.free]
            if not fitting:
                return
            heapq.heappop(self.queues[min(fitting)[1]])
            self._start(min(fitting)[0])
