"""Everything of an answer to a mutating review that memory alone decides."""

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from kopt.cluster.admission.review import Answer, Review
from kopt.cluster.client.resources import CRON_JOBS
from kopt.cluster.holds.hold import is_mirrored
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.runtime.tracing import TraceContext
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.memory_need import Need
from kopt.cluster.workloads.served import is_evaluated, is_made_by_another
from kopt.cluster.workloads.workload import NamespaceDefaults, Workload
from kopt.controllers.admission.answers import Admission, audit_annotations, refused, refused_opt_out
from kopt.controllers.admission.evaluation import ClusterState, Evaluation, evaluate, hardware_choice
from kopt.controllers.admission.lookups import before_change, was_out
from kopt.controllers.admission.makers import Stated, write_stated
from kopt.controllers.admission.mutating import (
    Record,
    apply_class,
    apply_hardware,
    apply_pools,
    apply_queue,
    apply_scheduler,
    apply_trace,
    hardware_warnings,
    refused_hardware,
    refused_pools,
    warnings_of,
)
from kopt.controllers.admission.policy import Namespaces
from kopt.controllers.admission.shares.writing import Shares, apply_shares, changed_share, requests_share
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.submission import Framework
from kopt.policies.admission.queue import choose_at_update


@dataclass
class Draft:
    """The answer to a review. Without records nothing of the object was evaluated."""

    workload: Workload
    evaluation: Evaluation
    patch: JsonPatch
    is_sized: bool
    """Whether a recommendation of size is still to be asked for."""
    records: list[Record] = field(default_factory=list)
    trace: TraceContext | None = None
    settled: Admission | None = None
    """The whole answer, where nothing more is to be decided."""
    shares: Shares = field(default_factory=Shares)
    is_new: bool = False
    """Whether a controller may still hold it, which keeps the request that it has by then."""

    @property
    def names_it(self) -> bool:
        """Whether name or user of this one workload stand in the answer."""
        return self.settled is not None or (bool(self.records) and not self.evaluation.queue.conforms)

    def admission(self) -> Admission:
        if self.settled is not None:
            return self.settled
        if not self.records:
            return Admission(Answer(patch=self.patch.operations), trace=self.trace)
        warnings = (*warnings_of(self.workload, self.evaluation), *self.shares.warnings)
        answer = Answer(patch=self.patch.operations, warnings=warnings, audit=audit_annotations(self.records))
        return Admission(answer, tuple(self.records), self.trace)


class DryRuns(Protocol):
    """What dry runs of Jobs have shown, and holding Jobs for one (``controllers.sizing``); nothing of other kinds."""

    def need(self, workload: Workload) -> Need | None: ...

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None: ...


class Staging(Protocol):
    """Holding workloads until their data is there (``controllers.staging``)."""

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None: ...


class Drafting:
    """``is_sized``: whether there is a source of sizes, so that what is new is sized."""

    def __init__(
        self, cluster: ClusterState, dry_runs: DryRuns | None, staging: Staging | None, *, is_sized: bool
    ) -> None:
        self._cluster, self._dry_runs, self._staging = cluster, dry_runs, staging
        self._is_sized = is_sized

    def draft(
        self,
        review: Review,
        workload: Workload,
        namespace: NamespaceDefaults,
        traceparent: str,
        stated: Stated = MappingProxyType({}),
    ) -> Draft | None:
        """Everything but the size, and who holds it; None for what is let through as it is. ``stated``: what the
        workload has from what it was made of, and its object has not."""
        policy, creates = self._cluster.policy, review.operation == "CREATE"
        if is_mirrored(workload.document):
            # What its own cluster has not written would be taken for another job there.
            return None
        if not workload.uses_gpus:
            return self._draft_of_hardware(review, workload, namespace) if creates else None
        if workload.opts_out and was_out(review, workload, policy.queues.framework):
            return None
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        draft = Draft(workload, evaluation, JsonPatch(review.object), is_sized=False)
        if creates and workload.kind.resource.kind == "Pod" and evaluation.acts:
            draft.trace = apply_trace(draft.patch, review, policy, traceparent)
        if not is_evaluated(workload):
            # Pods of a Deployment's or a StatefulSet's wait for their data one by one.
            draft.records += self.held(draft, only_for_data=True) if creates else []
            return draft
        if workload.opts_out and evaluation.queue_mode is Mode.ENFORCE:
            draft.settled = refused_opt_out(workload, review, evaluation)
            return draft
        if not creates:
            record = changed_share(workload, before_change(review), evaluation.fractions_mode)
            if record is not None:
                draft.settled = refused(record)
                return draft
            draft.evaluation = self._evaluated_at_update(evaluation, review)
        if evaluation.acts:
            write_stated(draft.patch, stated)
        draft.records += apply_queue(draft.patch, workload, draft.evaluation, policy)
        # Later changes to a template would restart what runs; only creation may touch it.
        if creates:
            if (record := refused_pools(draft.evaluation) or refused_hardware(draft.evaluation)) is not None:
                draft.settled = refused(record)
                return draft
            draft.records += apply_pools(draft.patch, workload, draft.evaluation, policy)
            draft.records += apply_hardware(draft.patch, workload, draft.evaluation)
            draft.shares = apply_shares(
                draft.patch,
                review,
                workload,
                draft.evaluation.fractions_mode,
                # All nodes are gone through for it.
                self._cluster.sharing() if requests_share(workload) else None,
                policy.queues.framework,
                self._cluster.covered,
            )
            if (record := draft.shares.refused) is not None:
                draft.settled = refused(record)
                return draft
            draft.records += draft.shares.records
            if not draft.shares.is_written:
                draft.records += apply_scheduler(draft.patch, workload, draft.evaluation)
            draft.records += apply_class(draft.patch, workload, draft.evaluation)
            draft.is_sized = self._is_sized or self._dry_runs is not None
            draft.is_new = True
        return draft

    def _draft_of_hardware(self, review: Review, workload: Workload, namespace: NamespaceDefaults) -> Draft | None:
        """Of a workload without GPUs, which may name other accelerators; it needs no queue."""
        if workload.ends or workload.opts_out or is_made_by_another(workload):
            return None
        if hardware_choice(workload, self._cluster) is None:
            return None
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        draft = Draft(workload, evaluation, JsonPatch(review.object), is_sized=False)
        if (record := refused_hardware(evaluation)) is not None:
            draft.settled = refused(record)
            return draft
        records = apply_hardware(draft.patch, workload, evaluation)
        warnings, audit = hardware_warnings(evaluation), audit_annotations(records)
        answer = Answer(patch=draft.patch.operations, warnings=warnings, audit=audit)
        draft.settled = Admission(answer, tuple(records))
        return draft

    def held(self, draft: Draft, *, only_for_data: bool = False) -> list[Record]:
        """Last, as a queue label that was just written means that a queue holds the Job."""
        managed, evaluation = self._cluster.policy.namespaces is Namespaces.OPT_IN, draft.evaluation
        # Data first: a dry run needs it as well, and waits for its turn.
        dry_runs = None if only_for_data else self._dry_runs
        holders = (("staging", self._staging, evaluation.mode), ("profiling", dry_runs, evaluation.mode))
        result = [
            (row, staging.hold(draft.patch, draft.workload, mode, managed=managed), mode)
            for row, staging, mode in holders
            if staging is not None
        ]
        return [Record.of(row, reason, mode) for row, reason, mode in result if reason is not None]

    def _evaluated_at_update(self, evaluation: Evaluation, review: Review) -> Evaluation:
        old, framework = before_change(review), self._cluster.policy.queues.framework
        if old is None:
            return evaluation
        takes_running = framework is not Framework.KUEUE or old.kind.resource == CRON_JOBS
        before = written_queue(framework, old.kind, old.document, old.pod_sets)
        choice = choose_at_update(evaluation.queue, before, takes_running=takes_running, runs=old.runs)
        return replace(evaluation, queue=choice)
