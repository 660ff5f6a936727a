"""A review in, an answer out: what the two paths of the webhook server do with a request."""

from collections.abc import Sequence
from typing import Protocol

from kopt.cluster.admission.review import Answer, Review
from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import is_mirrored
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.requests.external import CLAIMS, stands_elsewhere
from kopt.cluster.workloads.served import is_evaluated
from kopt.cluster.workloads.workload import Workload, read_workload
from kopt.controllers.admission.answers import LET_THROUGH, UNKNOWN_NAMESPACE, Admission, audit_annotations
from kopt.controllers.admission.drafting import Draft, Drafting, DryRuns, Staging
from kopt.controllers.admission.evaluation import ClusterState
from kopt.controllers.admission.lookups import Lookups, Reader, in_time, read
from kopt.controllers.admission.makers import maker_of, with_stated
from kopt.controllers.admission.mutating import Record
from kopt.controllers.admission.request_cache import Repeats
from kopt.controllers.admission.shares.charging import charge_workload, is_kueue_workload
from kopt.controllers.admission.shares.writing import requests_share
from kopt.controllers.admission.sizes.advice import apply_sizing
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.controllers.admission.teams import TeamTotals
from kopt.controllers.admission.validation import Validation
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.switches import Owner
from kopt.policies.admission.mode import effective_mode

CREATION_S = 0.6
"""Of what has to be in the cluster before an object is let in."""


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
        self._cluster, self._sizes, self._dry_runs = cluster, sizes or SizingCache(), dry_runs
        self._lookups = Lookups(cluster, reader)
        self._drafting = Drafting(cluster, dry_runs, staging, is_sized=self._sizes.has_source)
        self._validation = Validation(cluster, self._lookups, teams)
        self._devices = devices
        self._share_claims = share_claims
        self._repeats = Repeats[Admission](cluster)

    async def mutate(self, review: Review, traceparent: str = "") -> Admission:
        """Labels, scheduler, recommendation, trace context, and the devices of claims, as the modes allow."""
        if _is_claim(review):
            return await self._claim(review)
        if is_kueue_workload(review):
            return Admission(await charge_workload(review, self._lookups))
        workload = await self._lookups.workload(review)
        if workload is None:
            return LET_THROUGH
        namespace = await self._lookups.namespace(workload)
        if namespace is None:
            return UNKNOWN_NAMESPACE if is_evaluated(workload) else LET_THROUGH
        stated = await self._lookups.stated(review, workload)
        draft = self._drafting.draft(review, with_stated(workload, stated), namespace, traceparent, stated)
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
            draft.records += self._drafting.held(draft)
        if draft is not None and draft.shares.is_written and not review.dry_run:
            await self._share(draft)
        return LET_THROUGH if draft is None else draft.admission()

    def mutate_at_once(self, review: Review, traceparent: str = "") -> Admission | None:
        """The same from memory; None where something has to be waited for."""
        if _is_claim(review):
            return None if self._devices is not None and self._devices.is_wanted(review.object) else LET_THROUGH
        if is_kueue_workload(review):
            return None
        # With a source of sizes the answer rests on what that has brought so far, too.
        key = None if self._sizes.has_source else self._repeats.key(review, traceparent)
        if key is not None and (cached := self._repeats.find(key)) is not None:
            return cached
        workload = read(review)
        if workload is None:
            return LET_THROUGH
        namespace = self._cluster.namespace(workload.namespace)
        if self._sizes.has_source or stands_elsewhere(workload) or namespace is None:
            return None
        if review.operation == "CREATE" and maker_of(workload) is not None:
            return None
        if self._dry_runs is not None and self._dry_runs.need(workload) is not None:
            return None
        if requests_share(workload):
            # A claim may have to be created first, and the answer is this object's alone.
            return None
        draft = self._drafting.draft(review, workload, namespace, traceparent)
        if draft is not None and draft.is_new:
            draft.records += self._drafting.held(draft)
        admission = LET_THROUGH if draft is None else draft.admission()
        if key is not None and (draft is None or not draft.names_it):
            self._repeats.keep(key, admission)
        return admission

    async def _share(self, draft: Draft) -> None:
        """What the share needs in the cluster; refused where that cannot be had, as the pods would wait for it."""
        shares, claims = draft.shares, self._share_claims
        created = claims is not None and await in_time(claims.create(shares.templates), CREATION_S)
        if shares.templates and not created:
            text = "The claim for its share of a GPU could not be created in time. Submit it again."
            record = Record("fractions", "GPU_SHARE_NO_CLAIM", Mode.ENFORCE, text)
            draft.settled = Admission(Answer(refusal=text, audit=audit_annotations([record])), (record,))
        elif claims is not None:
            claims.written(draft.workload, shares.word, " ".join(record.message for record in shares.records))

    async def _claim(self, review: Review) -> Admission:
        """A claim follows the mode of its pod, and stays as written where that cannot be read in time."""
        pod = await in_time(self._devices.pod(review)) if self._devices is not None else None
        if self._devices is None or pod is None:
            return LET_THROUGH
        workload = read_workload(pod, "", "Pod", review.namespace, "")
        namespace = None if workload is None else await self._lookups.namespace(workload)
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
        return Admission(Answer(patch=patch.operations, audit=audit_annotations(records)), tuple(records))

    async def validate(self, review: Review) -> Admission:
        """Refusals, as ``Validation`` says."""
        return await self._validation.validate(review)


def _is_claim(review: Review) -> bool:
    return (review.group, review.kind) == (CLAIMS.group, CLAIMS.kind)
