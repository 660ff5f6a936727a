"""The validating path: what a review is refused for."""

from dataclasses import replace

from kopt.cluster.admission.review import Answer, Review
from kopt.cluster.client.resources import MIG_STRATEGIES
from kopt.cluster.objects.custom.mig_strategy import StrategyError, read_strategy
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.served import is_evaluated
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.admission.answers import LET_THROUGH, UNKNOWN_NAMESPACE, Admission, refused, refused_opt_out
from kopt.controllers.admission.evaluation import ClusterState, evaluate
from kopt.controllers.admission.lookups import Lookups, before_change, was_out
from kopt.controllers.admission.mutating import Record
from kopt.controllers.admission.shares.writing import late_charge
from kopt.controllers.admission.teams import TeamTotals, Totals
from kopt.core.decision import Mode
from kopt.core.scheduling.submission import Framework


class Validation:
    """Refuses what no rule lets in."""

    def __init__(self, cluster: ClusterState, lookups: Lookups, teams: TeamTotals | None) -> None:
        self._cluster, self._lookups, self._teams = cluster, lookups, teams

    async def validate(self, review: Review) -> Admission:
        """Refuses, in the mode enforce, what matches no queue rule, and opt-outs.

        The API server sends opt-outs only of users without the right to them. Also refuses, in any mode, a MIGStrategy
        that cannot be followed.
        """
        if (review.group, review.kind) == (MIG_STRATEGIES.group, MIG_STRATEGIES.kind):
            return _of_strategy(review)
        totals = await self._team_totals(review)
        if totals.refusal:
            return refused(Record("teams", "TEAM_TOTAL", Mode.ENFORCE, totals.refusal))
        admission = await self._validated(review)
        if not totals.warnings or admission.answer.refusal:
            return admission
        answer = replace(admission.answer, warnings=(*admission.answer.warnings, *totals.warnings))
        records = (Record("teams", "TEAM_TOTAL", Mode.ANNOTATE, totals.warnings[0]), *admission.records)
        return replace(admission, answer=answer, records=records)

    async def _team_totals(self, review: Review) -> Totals:
        is_pod = (review.group, review.kind, review.operation) == ("", "Pod", "CREATE")
        return await self._teams.evaluate(review) if self._teams is not None and is_pod else Totals()

    async def _validated(self, review: Review) -> Admission:
        workload = await self._lookups.workload(review)
        if workload is None or not is_evaluated(workload):
            return LET_THROUGH
        namespace = await self._lookups.namespace(workload)
        if namespace is None:
            return UNKNOWN_NAMESPACE
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        if evaluation.queue_mode is not Mode.ENFORCE:
            return self._let_through(review, workload, evaluation.fractions_mode)
        if workload.opts_out:
            stays_out = was_out(review, workload, self._cluster.policy.queues.framework)
            return LET_THROUGH if stays_out else refused_opt_out(workload, review, evaluation)
        if evaluation.queue.conforms:
            return self._let_through(review, workload, evaluation.fractions_mode)
        if review.operation != "CREATE" and not await self._was_conformant(review):
            return Admission(Answer(warnings=("it still has no queue; the audit lists it",)))
        record = Record.of("queue", evaluation.queue.reasons[-1], evaluation.queue_mode)
        return refused(record)

    def _let_through(self, review: Review, workload: Workload, mode: Mode) -> Admission:
        reads_kueues_queues = self._cluster.policy.queues.framework is Framework.KUEUE
        if mode is Mode.OBSERVE or not reads_kueues_queues or review.operation != "UPDATE":
            return LET_THROUGH
        late = late_charge(workload, before_change(review), self._cluster.covered, mode)
        return LET_THROUGH if late is None else Admission(Answer(warnings=(late.message,)), (late,))

    async def _was_conformant(self, review: Review) -> bool:
        """Whether the object before the change had a queue or no GPUs; an old fault is not a reason to refuse."""
        old = before_change(review)
        if old is None or not (await self._lookups.completed(old)).uses_gpus:
            return True
        return bool(written_queue(self._cluster.policy.queues.framework, old.kind, old.document, old.pod_sets))


def _of_strategy(review: Review) -> Admission:
    try:
        read_strategy(review.object)
    except StrategyError as error:
        return Admission(Answer(refusal=f"MIGStrategy {review.name}: {error}"))
    return LET_THROUGH
