"""One reconcile of all benchmarks: keep results, give way to other pods, start due tests, report progress.

Results are kept before a test is charged, and it is charged before its Job is deleted; so the next leader does the rest
after a crash at any point, and nothing is measured or charged twice.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from kopt.cluster.client.api import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from kopt.cluster.client.resources import JOBS, PAIRWISE_BENCHMARKS, SERVICES, Object
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.controllers.pairwise.bandwidth_store import Keeper
from kopt.controllers.pairwise.jobs import job_for, service_for
from kopt.controllers.pairwise.ports import Cluster, Writer
from kopt.controllers.pairwise.results import failures, measured
from kopt.controllers.pairwise.spec import Benchmark, benchmark_of
from kopt.controllers.pairwise.status import Account, account_of, budget_status, last_error, status_for
from kopt.controllers.pairwise.test_selection import Plan, in_the_way, plan
from kopt.controllers.pairwise.test_stage import Observation, Stage, Test, next_check_s, observe, test_of
from kopt.core.decision import Mode
from kopt.core.hardware.pairwise import Health, MeasuredPair, Pair
from kopt.core.switches import Owner
from kopt.policies.pairwise.health import HealthSettings

_LOG = logging.getLogger(__name__)
_SOON_S, _AFTER_ERROR_S = 0.5, 5.0
_EVICTED_PAUSE_S, _REFUSED_PAUSE_S = 60.0, 60.0
_SWITCHED_OFF = "the feature pairwise is switched off"
_LOG_WAITS_S = 120.0
"""A log that cannot be read is requested again for so long: its kubelet may be unreachable for a moment."""


@dataclass
class _Ended:
    """What is to be done with tests that are over."""

    results: list[MeasuredPair] = field(default_factory=list)
    tests: list[Test] = field(default_factory=list)
    error: str = ""


class Reconciler(Retrying):
    """``step`` raises Deposed only; ``namespace`` is that of the tests."""

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        namespace: str,
        emit_event: EmitEvent = lambda *_: None,
        clock: Callable[[], float] = time.time,
        health: HealthSettings | None = None,
        evicted_pause_s: float = _EVICTED_PAUSE_S,
        isolation: Isolation | None = None,
        gate: Gate = OPEN,
    ) -> None:
        super().__init__(isolation or Isolation("pairs"), Pauses(changed_s=_SOON_S, failed_s=_AFTER_ERROR_S))
        self._cluster, self._writer, self._namespace = cluster, writer, namespace
        self._emit_event, self._clock, self._evicted_pause_s = emit_event, clock, evicted_pause_s
        self._keeper = Keeper(cluster, writer, emit_event, health or HealthSettings())
        self._not_before_s: dict[Pair, float] = {}
        self._gate = gate

    async def step(self) -> float | None:
        """In how many seconds to run again, None for when something changes."""
        again_s = [await self._guarded(document) for document in self._cluster.benchmarks()]
        if not self._gate.is_off("pairwise") and self._cluster.changed_verdicts():
            again_s.append(await self._tried(self._evaluate))
        pauses_s = [value for value in again_s if value is not None]
        return min(pauses_s) if pauses_s else None

    async def _guarded(self, document: Object) -> float | None:
        return await self._tried(partial(self._looked_at, document), Subject.of(PAIRWISE_BENCHMARKS, document))

    async def _looked_at(self, document: Object) -> float | None:
        try:
            benchmark = benchmark_of(document)
        except ValueError as error:
            await self._report(document, Plan(state="InvalidSpec", why=str(error)), 0, str(error))
            return None
        owner = Owner.of(PAIRWISE_BENCHMARKS.plural, "", benchmark.name)
        if self._gate.mode("pairwise", owner, Mode.ENFORCE) is Mode.OBSERVE:
            benchmark = replace(benchmark, suspended=True, why_suspended=_SWITCHED_OFF)
        return await self._reconcile(benchmark)

    async def _evaluate(self) -> float | None:
        await self._keeper.keep((), self._clock())
        return None

    async def _reconcile(self, benchmark: Benchmark) -> float | None:
        now_s, again_s = self._clock(), [float("inf")]
        ended = _Ended()
        for test in self._tests(benchmark.name):
            observation = observe(test, self._cluster.pods_of(test.key), self._cluster.nodes(), benchmark, now_s)
            if observation.stage is Stage.RUNS:
                observation = self._gives_way(test, benchmark)
            if observation.stage is Stage.RUNS:
                again_s.append(next_check_s(test, benchmark, now_s) - now_s)
            elif not await self._end(test, observation, benchmark, ended):
                again_s.append(_AFTER_ERROR_S)
        await self._clear_away(benchmark, ended, now_s)
        result = await self._start(benchmark, now_s)
        error = ended.error or last_error(benchmark.document)
        await self._report(self._document(benchmark), result, len(self._tests(benchmark.name)), error)
        again_s.append(result.again_s - now_s)
        return None if min(again_s) == float("inf") else max(_SOON_S, min(again_s))

    def _gives_way(self, test: Test, benchmark: Benchmark) -> Observation:
        if benchmark.suspended:
            return Observation(Stage.EVICTED, "the benchmark is suspended")
        pod = in_the_way(test, benchmark, self._cluster)
        if pod is None:
            return Observation(Stage.RUNS)
        return Observation(Stage.EVICTED, f"pod {pod.key[0]}/{pod.key[1]} waits for its GPUs")

    async def _end(self, test: Test, observation: Observation, benchmark: Benchmark, ended: _Ended) -> bool:
        """Note what is to be done with a test that is over; False where its log is still to come."""
        if observation.stage is Stage.EVICTED:
            self._not_before_s[test.pair] = self._clock() + self._evicted_pause_s
            self._emit(benchmark, "TestGivenUp", f"{' and '.join(test.pair)}: {observation.why}")
            ended.tests.append(test)
            return True
        try:
            log = await self._cluster.log(observation.pod.key) if observation.pod is not None else ""
        except ApiError as error:
            if not isinstance(error, NotFound) and self._clock() - observation.at_s < _LOG_WAITS_S:
                return False
            if isinstance(error, NotFound) and observation.stage is Stage.SUCCEEDED:
                return await self._end(test, Observation(Stage.EVICTED, "its pod is gone"), benchmark, ended)
            log, observation = (
                "",
                Observation(
                    Stage.FAILED, observation.why or f"its log cannot be read: {error}", None, observation.at_s
                ),
            )
        if observation.stage is Stage.SUCCEEDED:
            measured_pairs = measured(log, benchmark, test.pair, observation.at_s)
        else:
            last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")
            measured_pairs = failures(
                benchmark, test.pair, observation.at_s, f"{observation.why}: {last[:300]}" if last else observation.why
            )
        bad = next((measured_pair for measured_pair in measured_pairs if measured_pair.health is Health.FAILED), None)
        if bad is not None:
            ended.error = f"{' and '.join(test.pair)}: {bad.reason}"
        self._emit(
            benchmark, "TestFailed" if bad else "TestEnded", ended.error or f"{' and '.join(test.pair)} measured"
        )
        ended.tests.append(test)
        ended.results += measured_pairs
        return True

    async def _clear_away(self, benchmark: Benchmark, ended: _Ended, now_s: float) -> None:
        if not ended.tests:
            return
        if ended.results:
            await self._keeper.keep(ended.results, now_s)
        document = self._document(benchmark)
        costs = ((item.uid, item.cost_gpu_s(benchmark.gpus, now_s)) for item in ended.tests)
        account = self._account(document, now_s).charged(costs)
        spent = {"budget": budget_status(account), "lastError": (ended.error or last_error(document))[:1024]}
        await self._put_status(document, {**(document.get("status") or {}), **spent})
        for test in ended.tests:
            await self._writer.delete(JOBS, test.job)

    async def _start(self, benchmark: Benchmark, now_s: float) -> Plan:
        if benchmark.suspended:
            return Plan(state="Suspended", why=benchmark.why_suspended)
        result = self._plan(benchmark, now_s)
        for pair in result.start:
            try:
                await self._start_test(benchmark, pair)
            except AlreadyExists:
                # Its last test is still being taken away.
                self._not_before_s[pair] = now_s + _AFTER_ERROR_S
            except (Invalid, Forbidden, NotFound) as error:
                return replace(result, state="TestsRefused", why=str(error), again_s=now_s + _REFUSED_PAUSE_S)
        # What has just started is not due any more.
        return self._plan(benchmark, now_s) if result.start else result

    def _plan(self, benchmark: Benchmark, now_s: float) -> Plan:
        every = [test for job in self._cluster.jobs() if (test := test_of(job)) is not None]
        running = sum(item.benchmark == benchmark.name for item in every)
        used = self._account(self._document(benchmark), now_s).gpu_s + running * benchmark.gpus * benchmark.timeout_s
        return plan(benchmark, self._cluster, every, self._keeper.measured(), now_s, used, self._not_before_s)

    async def _start_test(self, benchmark: Benchmark, pair: Pair) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._writer.create(SERVICES, service_for(benchmark, self._namespace))
        await self._writer.create(JOBS, job_for(benchmark, pair, self._namespace))
        self._emit(benchmark, "TestStarted", " and ".join(pair))

    async def _report(self, document: Object, result: Plan, running: int, error: str) -> None:
        now_s = self._clock()
        measured, sick = self._keeper.measured(), self._keeper.sick()
        account = self._account(document, now_s)
        await self._put_status(document, status_for(document, result, measured, sick, running, account, error, now_s))

    async def _put_status(self, document: Object, status: Object) -> None:
        if document.get("status") != status:
            await self._writer.replace_status(PAIRWISE_BENCHMARKS, document | {"status": status})

    def _account(self, document: Object, now_s: float) -> Account:
        return account_of(document, now_s).without({job["metadata"]["uid"] for job in self._cluster.jobs()})

    def _tests(self, benchmark: str) -> list[Test]:
        tests = [test_of(job) for job in self._cluster.jobs()]
        return [test for test in tests if test is not None and test.benchmark == benchmark]

    def _document(self, benchmark: Benchmark) -> Object:
        """As it is now: it may have been written in this pass."""
        every = self._cluster.benchmarks()
        return next((item for item in every if item["metadata"]["uid"] == benchmark.uid), benchmark.document)

    def _emit(self, benchmark: Benchmark, reason: str, sentence: str) -> None:
        self._emit_event(PAIRWISE_BENCHMARKS.reference("", benchmark.name, benchmark.uid), reason, sentence)
