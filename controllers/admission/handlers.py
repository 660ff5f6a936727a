"""A review in, an answer out: what the two paths of the webhook server do with a request."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from kopt.cluster.admission.review import ALLOWED, Answer, Review, let_through
from kopt.cluster.client.resources import CRON_JOBS, MIG_STRATEGIES, Object
from kopt.cluster.holds.hold import is_mirrored
from kopt.cluster.objects.custom.mig_strategy import StrategyError, read_strategy
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.runtime.tracing import TraceContext
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.memory_need import Need
from kopt.cluster.workloads.requests.external import CLAIMS, ObjectRef, completed, stands_elsewhere
from kopt.cluster.workloads.served import is_evaluated, is_made_by_another
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION, NamespaceDefaults, Workload, read_workload
from kopt.controllers.admission.evaluation import ClusterState, Evaluation, evaluate, hardware_choice
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
from kopt.controllers.admission.request_cache import Repeats
from kopt.controllers.admission.shares.writing import Shares, apply_shares, changed_share, requests_share
from kopt.controllers.admission.size_advice import apply_sizing
from kopt.controllers.admission.sizing import SizingCache
from kopt.controllers.admission.teams import TeamTotals, Totals
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.submission import Framework
from kopt.core.switches import Owner
from kopt.policies.admission.mode import effective_mode
from kopt.policies.admission.queue import choose_at_update

LOOKUP_S = 0.3
"""A namespace that the informer has not brought yet, or objects that have GPUs of a workload, are asked for, for so
long."""
CREATION_S = 0.6
"""Of what has to be in the cluster before an object is let in."""
T = TypeVar("T")


@dataclass(frozen=True)
class Admission:
    """An answer and what was decided on the way."""

    answer: Answer
    records: tuple[Record, ...] = ()
    trace: TraceContext | None = None


LET_THROUGH = Admission(ALLOWED)
UNJUDGED = "no rule was checked, and no queue, scheduler or size was added"
UNKNOWN_NAMESPACE = Admission(
    let_through("could not read its namespace in time", UNJUDGED, "Submit it again for an answer.")
)


@dataclass
class _Draft:
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
        warnings = warnings_of(self.workload, self.evaluation)
        answer = Answer(patch=self.patch.operations, warnings=warnings, audit=_audit(self.records))
        return Admission(answer, tuple(self.records), self.trace)


class Reader(Protocol):
    """Asks the API server for what the view does not hold; None and empty where there is no answer."""

    async def read_namespace(self, name: str) -> NamespaceDefaults | None: ...

    async def read(self, location: ObjectRef) -> Object | None: ...


class DryRuns(Protocol):
    """What dry runs of Jobs have shown, and holding Jobs for one (``controllers.sizing``); nothing of other kinds."""

    def need(self, workload: Workload) -> Need | None: ...

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None: ...


class Staging(Protocol):
    """Holding workloads until their data is there (``controllers.staging``)."""

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None: ...


class ShareClaims(Protocol):
    """Claim templates of shares, and what is said on the workloads that have them (``admission.shares.claims``)."""

    async def create(self, templates: Sequence[Object]) -> bool: ...

    def written(self, workload: Workload, word: str, message: str) -> None: ...


class Devices(Protocol):
    """Instances of GPUs for claims (``controllers.devices``)."""

    def is_wanted(self, claim: Object) -> bool: ...

    def mode(self, owner: Owner, mode: Mode) -> Mode: ...

    async def pod(self, review: Review) -> Object | None: ...

    def select(self, patch: JsonPatch, claim: Object, pod: Object, mode: Mode, *, dry_run: bool) -> Reason | None: ...


class Admissions:
    """Judges reviews by a view of the cluster. ``reader`` finds what is too new or too rare to be in the view."""

    def __init__(
        self,
        cluster: ClusterState,
        sizes: SizingCache | None = None,
        reader: Reader | None = None,
        dry_runs: DryRuns | None = None,
        staging: Staging | None = None,
        devices: Devices | None = None,
        teams: TeamTotals | None = None,
        share_claims: ShareClaims | None = None,
    ) -> None:
        self._cluster, self._sizes, self._reader = cluster, sizes or SizingCache(), reader
        self._dry_runs, self._staging, self._devices = dry_runs, staging, devices
        self._teams = teams
        self._share_claims = share_claims
        self._repeats = Repeats[Admission](cluster)

    async def mutate(self, review: Review, traceparent: str = "") -> Admission:
        """Labels, scheduler, recommendation, trace context, and the devices of claims, as the modes allow."""
        if _is_claim(review):
            return await self._claim(review)
        workload = await self._workload(review)
        if workload is None:
            return LET_THROUGH
        namespace = await self._namespace(workload)
        if namespace is None:
            return UNKNOWN_NAMESPACE if is_evaluated(workload) else LET_THROUGH
        draft = self._draft(review, workload, namespace, traceparent)
        if draft is not None and draft.is_sized:
            mode, policy = draft.evaluation.sizing_mode, self._cluster.policy
            if draft.shares.is_written and mode is Mode.ENFORCE:
                # What somebody has asked for in so many words is not changed any more.
                mode = Mode.ANNOTATE
            measured = self._dry_runs.need(workload) if self._dry_runs is not None else None
            draft.records += await apply_sizing(
                draft.patch,
                workload,
                mode,
                policy,
                self._sizes,
                measured,
                dry_run=review.dry_run,
                executor=self._cluster.executor(),
            )
        if draft is not None and draft.is_new:
            draft.records += self._held(draft)
        if draft is not None and draft.shares.is_written and not review.dry_run:
            await self._share(draft)
        return LET_THROUGH if draft is None else draft.admission()

    def mutate_at_once(self, review: Review, traceparent: str = "") -> Admission | None:
        """The same from memory; None where something has to be waited for."""
        if _is_claim(review):
            return None if self._devices is not None and self._devices.is_wanted(review.object) else LET_THROUGH
        # With a source of sizes the answer rests on what that has brought so far, too.
        key = None if self._sizes.has_source else self._repeats.key(review, traceparent)
        if key is not None and (cached := self._repeats.find(key)) is not None:
            return cached
        workload = _read(review)
        if workload is None:
            return LET_THROUGH
        namespace = self._cluster.namespace(workload.namespace)
        if self._sizes.has_source or stands_elsewhere(workload) or namespace is None:
            return None
        if self._dry_runs is not None and self._dry_runs.need(workload) is not None:
            return None
        if requests_share(workload):
            # A claim may have to be created first, and the answer is this object's alone.
            return None
        draft = self._draft(review, workload, namespace, traceparent)
        if draft is not None and draft.is_new:
            draft.records += self._held(draft)
        admission = LET_THROUGH if draft is None else draft.admission()
        if key is not None and (draft is None or not draft.names_it):
            self._repeats.keep(key, admission)
        return admission

    async def _share(self, draft: "_Draft") -> None:
        """What the share needs in the cluster; refused where that cannot be had, as the pods would wait for it."""
        shares, claims = draft.shares, self._share_claims
        created = claims is not None and await _in_time(claims.create(shares.templates), CREATION_S)
        if shares.templates and not created:
            text = "The claim for its share of a GPU could not be created in time. Submit it again."
            record = Record("fractions", "GPU_SHARE_NO_CLAIM", Mode.ENFORCE, text)
            draft.settled = Admission(Answer(refusal=text, audit=_audit([record])), (record,))
        elif claims is not None:
            claims.written(draft.workload, shares.word, " ".join(record.message for record in shares.records))

    async def _claim(self, review: Review) -> Admission:
        """A claim follows the mode of its pod, and stays as written where that cannot be read in time."""
        pod = await _in_time(self._devices.pod(review)) if self._devices is not None else None
        if self._devices is None or pod is None:
            return LET_THROUGH
        workload = read_workload(pod, "", "Pod", review.namespace, "")
        namespace = None if workload is None else await self._namespace(workload)
        if workload is None or namespace is None or workload.opts_out or is_mirrored(pod):
            return LET_THROUGH
        policy = self._cluster.policy
        own = workload.annotations.get(MODE_ANNOTATION)
        mode = effective_mode(own, namespace.mode, policy.mode, policy.workload_may_lower)
        mode = self._devices.mode(workload.owner, mode)
        patch = JsonPatch(review.object)
        reason = self._devices.select(patch, review.object, pod, mode, dry_run=review.dry_run)
        if reason is None:
            return LET_THROUGH
        records = [Record.of("devices", reason, mode)]
        return Admission(Answer(patch=patch.operations, audit=_audit(records)), tuple(records))

    def _draft(
        self, review: Review, workload: Workload, namespace: NamespaceDefaults, traceparent: str
    ) -> "_Draft | None":
        """Everything but the size, and who holds it; None for what is let through as it is."""
        policy, creates = self._cluster.policy, review.operation == "CREATE"
        if is_mirrored(workload.document):
            # What its own cluster has not written would be taken for another job there.
            return None
        if not workload.uses_gpus:
            return self._draft_of_hardware(review, workload, namespace) if creates else None
        if workload.opts_out and _was_out(review, workload, policy.queues.framework):
            return None
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        draft = _Draft(workload, evaluation, JsonPatch(review.object), is_sized=False)
        if creates and workload.kind.resource.kind == "Pod" and evaluation.acts:
            draft.trace = apply_trace(draft.patch, review, policy, traceparent)
        if not is_evaluated(workload):
            # Pods of a Deployment's or a StatefulSet's wait for their data one by one.
            draft.records += self._held(draft, only_for_data=True) if creates else []
            return draft
        if workload.opts_out and evaluation.queue_mode is Mode.ENFORCE:
            draft.settled = _refused_opt_out(workload, review, evaluation)
            return draft
        if not creates:
            record = changed_share(workload, _before(review), evaluation.fractions_mode)
            if record is not None:
                draft.settled = _refused(record)
                return draft
            draft.evaluation = self._evaluated_at_update(evaluation, review)
        draft.records += apply_queue(draft.patch, workload, draft.evaluation, policy)
        # Later changes to a template would restart what runs; only creation may touch it.
        if creates:
            if (record := refused_pools(draft.evaluation) or refused_hardware(draft.evaluation)) is not None:
                draft.settled = _refused(record)
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
            )
            if (record := draft.shares.refused) is not None:
                draft.settled = _refused(record)
                return draft
            draft.records += draft.shares.records
            if not draft.shares.is_written:
                draft.records += apply_scheduler(draft.patch, workload, draft.evaluation)
            draft.records += apply_class(draft.patch, workload, draft.evaluation)
            draft.is_sized = self._sizes.has_source or self._dry_runs is not None
            draft.is_new = True
        return draft

    def _draft_of_hardware(self, review: Review, workload: Workload, namespace: NamespaceDefaults) -> "_Draft | None":
        """Of a workload without GPUs, which may name other accelerators; it needs no queue."""
        if workload.ends or workload.opts_out or is_made_by_another(workload):
            return None
        if hardware_choice(workload, self._cluster) is None:
            return None
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        draft = _Draft(workload, evaluation, JsonPatch(review.object), is_sized=False)
        if (record := refused_hardware(evaluation)) is not None:
            draft.settled = _refused(record)
            return draft
        records = apply_hardware(draft.patch, workload, evaluation)
        answer = Answer(patch=draft.patch.operations, warnings=hardware_warnings(evaluation), audit=_audit(records))
        draft.settled = Admission(answer, tuple(records))
        return draft

    def _held(self, draft: "_Draft", *, only_for_data: bool = False) -> list[Record]:
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

    async def validate(self, review: Review) -> Admission:
        """Refuses, in the mode enforce, what matches no queue rule, and opt-outs.

        The API server sends opt-outs only of users without the right to them. Also refuses, in any mode, a MIGStrategy
        that cannot be followed.
        """
        if (review.group, review.kind) == (MIG_STRATEGIES.group, MIG_STRATEGIES.kind):
            return _of_strategy(review)
        totals = await self._team_totals(review)
        if totals.refusal:
            return _refused(Record("teams", "TEAM_TOTAL", Mode.ENFORCE, totals.refusal))
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
        workload = await self._workload(review)
        if workload is None or not is_evaluated(workload):
            return LET_THROUGH
        namespace = await self._namespace(workload)
        if namespace is None:
            return UNKNOWN_NAMESPACE
        evaluation = evaluate(workload, self._cluster, namespace, review.groups)
        if evaluation.queue_mode is not Mode.ENFORCE:
            return LET_THROUGH
        if workload.opts_out:
            was_out = _was_out(review, workload, self._cluster.policy.queues.framework)
            return LET_THROUGH if was_out else _refused_opt_out(workload, review, evaluation)
        if evaluation.queue.conforms:
            return LET_THROUGH
        if review.operation != "CREATE" and not await self._was_conformant(review):
            return Admission(Answer(warnings=("it still has no queue; the audit lists it",)))
        record = Record.of("queue", evaluation.queue.reasons[-1], evaluation.queue_mode)
        return _refused(record)

    async def _namespace(self, workload: Workload) -> NamespaceDefaults | None:
        """None when the namespace cannot be known in time: unsure means hands off."""
        namespace = self._cluster.namespace(workload.namespace)
        if namespace is None and self._reader is not None:
            namespace = await _in_time(self._reader.read_namespace(workload.namespace))
        return namespace

    async def _workload(self, review: Review) -> Workload | None:
        workload = _read(review)
        return None if workload is None else await self._completed(workload)

    async def _completed(self, workload: Workload) -> Workload:
        """With the GPUs that stand in other objects; as it is when these cannot be had in time."""
        if not stands_elsewhere(workload):
            return workload
        read = self._reader.read if self._reader is not None else None
        return await _in_time(completed(workload, self._cluster.find, read)) or workload

    def _evaluated_at_update(self, evaluation: Evaluation, review: Review) -> Evaluation:
        old, framework = _before(review), self._cluster.policy.queues.framework
        if old is None:
            return evaluation
        takes_running = framework is not Framework.KUEUE or old.kind.resource == CRON_JOBS
        before = written_queue(framework, old.kind, old.document, old.pod_sets)
        choice = choose_at_update(evaluation.queue, before, takes_running=takes_running, runs=old.runs)
        return replace(evaluation, queue=choice)

    async def _was_conformant(self, review: Review) -> bool:
        """Whether the object before the change had a queue or no GPUs; an old fault is not a reason to refuse."""
        old = _before(review)
        if old is None or not (await self._completed(old)).uses_gpus:
            return True
        return bool(written_queue(self._cluster.policy.queues.framework, old.kind, old.document, old.pod_sets))


def _read(review: Review) -> Workload | None:
    return read_workload(review.object, review.group, review.kind, review.namespace, review.name)


def _of_strategy(review: Review) -> Admission:
    try:
        read_strategy(review.object)
    except StrategyError as error:
        return Admission(Answer(refusal=f"MIGStrategy {review.name}: {error}"))
    return LET_THROUGH


def _is_claim(review: Review) -> bool:
    return (review.group, review.kind) == (CLAIMS.group, CLAIMS.kind)


def _refused(record: Record) -> Admission:
    return Admission(Answer(refusal=record.message, audit=_audit([record])), (record,))


def _refused_opt_out(workload: Workload, review: Review, evaluation: Evaluation) -> Admission:
    text = (
        f"{OPT_OUT_ANNOTATION} on {workload.kind.resource.kind} {workload.namespace}/{workload.name}: "
        f"{review.user!r} may not take workloads out of the queues. Remove the annotation, or have the verb bypass "
        "on conformancepolicies.kaiwo.ai granted."
    )
    record = Record("opt-out", "NOT_ALLOWED", evaluation.queue_mode, text)
    return _refused(record)


def _was_out(review: Review, workload: Workload, framework: Framework) -> bool:
    """Whether a change finds the workload opted out, and in no queue that it leaves: who did that had the right to."""
    before = _before(review)
    if before is None or not before.opts_out:
        return False
    old, new = (written_queue(framework, item.kind, item.document, item.pod_sets) for item in (before, workload))
    return bool(new) or not old


def _before(review: Review) -> Workload | None:
    """The workload as it was before the change."""
    if review.old is None:
        return None
    return read_workload(review.old, review.group, review.kind, review.namespace, review.name)


async def _in_time(reading: Awaitable[T], budget_s: float = LOOKUP_S) -> T | None:
    try:
        async with asyncio.timeout(budget_s):
            return await reading
    except TimeoutError:
        return None


def _audit(records: list[Record]) -> dict[str, str]:
    return {record.row: f"{record.mode}: {record.code}: {record.message}"[:500] for record in records}
