"""K13 at creation: each pod template that asks for a share of a GPU in our words says it in an executor's terms.

What none of the executors on its nodes can give, or gives without enforcing it, is refused in mode enforce.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.shares.offers import SharedGpus
from kopt.cluster.workloads.shares.writing import (
    EXECUTOR_ANNOTATION,
    SHARE_LABEL,
    CannotShare,
    claim_template,
    sharer_of,
    write_share,
)
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.admission.mutating import Record
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.submission import DEFAULT_SCHEDULER, Framework
from kopt.core.units import counted
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_share import (
    CHARGE_RESOURCE,
    COUNT,
    FRACTION,
    FRACTION_LIMIT,
    ISOLATION,
    MEMORY,
    MEMORY_LIMIT,
    ShareError,
    ShareExecutor,
    ShareRequest,
    parse_share,
)
from kopt.core.workload.share_offer import ShareOffer
from kopt.formats.gpu_shares import SCHEDULERS, stated_executor
from kopt.formats.share_terms import ShareForm, share_form
from kopt.policies.fractions.charging import Charge, charge_of, charge_of_claim
from kopt.policies.fractions.choose import ShareChoice, choose_share

RECOMMENDED_ANNOTATION = "kaiwo.ai/recommended-gpu-executor"
"""On a workload in mode annotate: which executor would have been asked for its share."""
Covered = Callable[[str, str], Collection[str] | None]
"""By namespace and queue of Kueue: the resources that its ClusterQueue has quota for; None where that is not known."""
_SCHEDULERS = {
    ShareExecutor.KAI: SCHEDULERS[Executor.KAI],
    ShareExecutor.HAMI: SCHEDULERS[Executor.HAMI],
    ShareExecutor.VOLCANO: SCHEDULERS[Executor.VOLCANO],
}
_BY_CLAIMS = frozenset({str(ShareExecutor.DRA), str(ShareExecutor.DRA_HAMI)})


def _uncovered(namespace: str, queue: str) -> None:
    return None


@dataclass
class Shares:
    """What became of the shares that a workload asks for. ``templates`` have to be created before it is; ``word`` is
    what it and they are labelled with."""

    records: list[Record] = field(default_factory=list)
    refused: Record | None = None
    templates: list[Object] = field(default_factory=list)
    word: str = ""

    @property
    def is_written(self) -> bool:
        return bool(self.word)

    @property
    def warnings(self) -> tuple[str, ...]:
        """For whoever submits the workload."""
        return tuple(record.message for record in self.records if record.code == "GPU_SHARE_CHARGED_OTHERWISE")


@dataclass(frozen=True)
class PlannedShare:
    """Of one pod template; ``choice.offer`` is None where nothing gives it, and then there is no form."""

    pods: PodSet
    request: ShareRequest
    choice: ShareChoice
    form: ShareForm | None
    is_for_scheduler: bool = False
    """To the scheduler that the pods name: nothing on their nodes hands out shares."""
    charge: Charge = Charge()
    """By the queue of Kueue that the workload waits in."""

    @property
    def reason(self) -> Reason:
        offer = self.choice.offer
        if self.is_for_scheduler:
            text_ = f"{self.request}: left to the scheduler that the pods name, as nothing hands out shares there."
            return Reason("GPU_SHARE_LEFT", text_)
        if offer is None:
            return Reason("GPU_SHARE_NOT_GIVEN", f"{self.request}: {self.choice.text}.")
        nodes = counted(self.choice.nodes, "node")
        text_ = f"{self.request}: given by {offer.executor} on {nodes} that it may use."
        text_ += f" Its queue charges {self.charge.milli} {CHARGE_RESOURCE} for a pod." if self.charge.milli else ""
        return Reason("GPU_SHARE_WRITTEN", text_, {"executor": str(offer.executor), "nodes": self.choice.nodes})

    @property
    def charged_otherwise(self) -> Reason | None:
        if not self.charge.warning:
            return None
        return Reason("GPU_SHARE_CHARGED_OTHERWISE", f"{self.request}: {self.charge.warning}.")


def requests_share(workload: Workload) -> bool:
    """Whether any of its templates has a share to be written."""
    return any(_annotations(workload, pods) is not None for pods in workload.pod_sets)


def apply_shares(
    patch: JsonPatch,
    review: Review,
    workload: Workload,
    mode: Mode,
    sharing: SharedGpus | None,
    framework: Framework,
    covered: Covered = _uncovered,
) -> Shares:
    """Writes every share of a workload, or, where one of them cannot be given, none."""
    try:
        planned = plan_shares(workload, sharing, framework, covered)
    except ShareError as error:
        record = Record("fractions", "GPU_SHARE_UNREADABLE", mode, f"{error}.")
        return Shares([record], record if mode is Mode.ENFORCE else None)
    if not planned:
        return Shares()
    if sharing is None:
        text_ = "It is not known yet what hands out shares of GPUs here: the request stays as written."
        return Shares([Record("fractions", "GPU_SHARE_NOT_KNOWN", mode, text_)])
    records = [Record.of("fractions", share.reason, mode) for share in planned]
    records += [Record.of("fractions", reason, mode) for share in planned if (reason := share.charged_otherwise)]
    if any(share.is_for_scheduler for share in planned):
        return Shares([record for record in records if record.code == "GPU_SHARE_LEFT"][:1])
    refused = next((record for record in records if record.code == "GPU_SHARE_NOT_GIVEN"), None)
    if refused is not None or mode is Mode.OBSERVE:
        return Shares([refused or records[0]], refused if mode is Mode.ENFORCE else None)
    if mode is Mode.ANNOTATE:
        executors = ",".join(dict.fromkeys(str(share.choice.offer.executor) for share in planned if share.choice.offer))
        patch.put(("metadata", "annotations", RECOMMENDED_ANNOTATION), executors)
        return Shares(records[:1])
    return _written(patch, review, workload, planned, records)


def plan_shares(
    workload: Workload, sharing: SharedGpus | None, framework: Framework, covered: Covered = _uncovered
) -> list[PlannedShare]:
    """What each template that asks for a share would be given. Raises ShareError for a request that cannot be read."""
    return [
        _planned(workload, pods, request, sharing or SharedGpus(), framework, covered)
        for pods in workload.pod_sets
        if (annotations := _annotations(workload, pods)) is not None
        and (request := parse_share(annotations)) is not None
    ]


def changed_share(workload: Workload, before: Workload | None, mode: Mode) -> Record | None:
    """Why a change is refused that asks for another share than was written; None where it is not.

    What was written stays as it is, as nobody can change a claim template, so the pods would have the old share.
    """
    if before is None or mode is not Mode.ENFORCE:
        return None
    for pods in workload.pod_sets:
        if pods.metadata is None:
            continue
        now, then = (mapping(each.document, *pods.metadata, "annotations") for each in (workload, before))
        if (
            EXECUTOR_ANNOTATION in now
            and EXECUTOR_ANNOTATION in then
            and _share_annotations(now) != _share_annotations(then)
        ):
            text_ = "The share of a GPU of a workload is set when it is created: delete it and create it anew."
            return Record("fractions", "GPU_SHARE_CHANGED", mode, text_)
    return None


def late_charge(workload: Workload, before: Workload | None, covered: Covered, mode: Mode) -> Record | None:
    """What whoever puts a workload with shares by claims into a queue of Kueue has to know: that it waits there, as the
    queue has no quota for what they are charged. It is let in, as they were charged nothing where it was."""
    queue, earlier = (
        each and written_queue(Framework.KUEUE, each.kind, each.document, each.pod_sets) for each in (workload, before)
    )
    if earlier is None or queue in ("", earlier):
        return None
    executors = {
        text(workload.document, *pods.metadata, "annotations", EXECUTOR_ANNOTATION)
        for pods in workload.pod_sets
        if pods.metadata is not None
    }
    resources = covered(workload.namespace, queue or "")
    if resources is None or CHARGE_RESOURCE in resources or not executors & _BY_CLAIMS:
        return None
    text_ = (
        f"It waits in queue {queue}: its shares of GPUs are charged as {CHARGE_RESOURCE}, and the queue's ClusterQueue "
        f"has no quota for that. Add some (1000 for each GPU), or name a queue that has."
    )
    return Record("fractions", "GPU_SHARE_CHARGED_OTHERWISE", mode, text_)


def _share_annotations(annotations: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(annotations.get(name) for name in (FRACTION, MEMORY, FRACTION_LIMIT, MEMORY_LIMIT, ISOLATION, COUNT))


def _planned(
    workload: Workload,
    pods: PodSet,
    request: ShareRequest,
    sharing: SharedGpus,
    framework: Framework,
    covered: Covered,
) -> PlannedShare:
    spec = mapping(workload.document, *(pods.spec or ()))
    try:
        sharer_of(workload.document, pods, request.count)
    except CannotShare as error:
        return PlannedShare(pods, request, ShareChoice(None, refusals=(str(error),)), None)
    queued = {
        each: written_queue(each, workload.kind, workload.document, workload.pod_sets)
        for each in {framework, Framework.KAI, Framework.KUEUE}
    }

    in_kueue = queued[Framework.KUEUE]
    resources = covered(workload.namespace, in_kueue) if in_kueue else None

    unknown = _why_unknown(framework, workload.namespace, in_kueue)

    def charge(offer: ShareOffer) -> Charge:
        return charge_of(request, share_form(request, offer), offer, resources, unknown) if in_kueue else Charge()

    def excluded(offer: ShareOffer) -> str:
        scheduler, named = _SCHEDULERS.get(offer.executor), text(spec, "schedulerName")
        if scheduler and named not in ("", DEFAULT_SCHEDULER, scheduler):
            return f"its scheduler is {scheduler}, and the pods name {named}"
        if problem := charge(offer).problem:
            return problem
        if offer.executor is ShareExecutor.KAI and not queued[Framework.KAI]:
            return "the pods have no queue of KAI (label kai.scheduler/queue)"
        return ""

    choice = choose_share(request, sharing.offered(dict(spec)), excluded)
    form = None if choice.offer is None else share_form(request, choice.offer)
    named = text(spec, "schedulerName") not in ("", DEFAULT_SCHEDULER, *SCHEDULERS.values())
    is_for_scheduler = named and not any(node.offers for node in sharing.offered(dict(spec)))
    charged = Charge() if choice.offer is None else charge(choice.offer)
    return PlannedShare(pods, request, choice, form, is_for_scheduler, charged)


def _why_unknown(framework: Framework, namespace: str, queue: str) -> str:
    """Why nobody knows what a queue of Kueue has quota for."""
    if framework is not Framework.KUEUE:
        return (
            f"queues of Kueue are not read where the ConformancePolicy's framework is {framework}: take the name of "
            f"Kueue's queue, {queue}, off the workload, or set the policy's spec.framework to Kueue"
        )
    return f"there is no LocalQueue {namespace}/{queue} whose ClusterQueue exists, or it is too young to be known"


def _written(
    patch: JsonPatch, review: Review, workload: Workload, planned: list[PlannedShare], records: list[Record]
) -> Shares:
    word = hashlib.sha256(review.uid.encode()).hexdigest()[:12]
    result = Shares(records, word=word)
    of = f"{workload.kind.resource.plural}.{workload.kind.resource.version}.{workload.kind.resource.group}"
    for number, share in enumerate(planned):
        assert share.form is not None, "a share without a form was refused"
        assert share.choice.offer is not None, "a share without an executor was refused"
        name = f"kaiwo-share-{word}-{number}"
        try:
            write_share(patch, share.pods, share.request, share.choice.offer.executor, share.form, name)
        except CannotShare as error:
            record = Record("fractions", "GPU_SHARE_NOT_GIVEN", records[0].mode, f"{share.request}: {error}.")
            return Shares([record], record)
        if share.form.claim is not None:
            charged = charge_of_claim(share.request, share.form, share.choice.offer)
            result.templates.append(claim_template(name, workload.namespace, word, of, share.form, charged))
    patch.put(("metadata", "labels", SHARE_LABEL), word)
    return result


def _annotations(workload: Workload, pods: PodSet) -> Mapping[str, Any] | None:
    """Of a template that asks in our words and not in an executor's as well; None for others.

    Kinds without a template of their own are asked by the annotations of the object.
    """
    path = pods.metadata if pods.metadata is not None else ("metadata",)
    annotations = mapping(workload.document, *path, "annotations")
    try:
        if parse_share(annotations) is None:
            return None
    except ShareError:
        pass
    if EXECUTOR_ANNOTATION in annotations:
        return None
    spec = mapping(workload.document, *(pods.spec or ()))
    return None if stated_executor(annotations, spec).hands_out else annotations
