"""The patches of queues and borrowers; every hold says how it is undone."""

from collections.abc import Collection

from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, VOLCANO_JOBS, Object, Resource
from kopt.cluster.holds.hold import HELD_LABEL, HoldError, hold, hold_metadata, holder_of, release, undo_of
from kopt.cluster.holds.quota_loan import LENDING_LIMIT, QuotaPath, quota_from_undo, quota_undo, restored, with_values
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION, notice_text
from kopt.cluster.objects.volcano import ABORT, RESUME, STEP
from kopt.cluster.workloads.requests.gpus import per_device
from kopt.controllers.lending.views import ADVICE_ANNOTATION, HOLDER, MINE, Borrowing, BorrowingQueue
from kopt.core.scheduling.eviction import Cause, Notice, System
from kopt.core.units import WHOLE_GPU

_LONGEST = 900


def quota(queue: BorrowingQueue, lent: int) -> Object:
    """The patch that lets a queue use what it owns and ``lent`` GPUs more; nothing lent takes the marks away."""
    assert queue.document is not None
    if lent == 0 and queue.marked:
        return restoring_patch(queue.resource, queue.document, queue.values)
    more = {path: _more(queue, path, own, lent) for path, (own, _) in queue.values.items()}
    # Other pools may lend to other flavors of it.
    owned = dict(quota_from_undo(undo_of(queue.document)))
    owned |= {path: (own, more[path]) for path, (own, _) in queue.values.items()}
    return {
        "metadata": hold_metadata(HOLDER, quota_undo(owned)),
        "spec": with_values(queue.resource, queue.document, more),
    }


def restoring_patch(resource: Resource, document: Object, paths: Collection[QuotaPath]) -> Object:
    """The patch that gives a queue what it owns at ``paths``; its marks go with the last of them."""
    owned = quota_from_undo(undo_of(document))
    remaining = {path: value for path, value in owned.items() if path not in paths}
    if not remaining:
        return release(resource, document)
    changes = restored(resource, document, quota_undo({path: owned[path] for path in owned if path in paths}))
    return changes | {"metadata": hold_metadata(HOLDER, quota_undo(remaining))}


def _more(queue: BorrowingQueue, path: QuotaPath, own: object, lent: int) -> object:
    """Kueue and Volcano write quantities; KAI numbers, of which a negative one is no limit. A queue in a cohort lends
    what it owns as before, and nothing of what is lent to it."""
    per_gpu = per_device(path[1]) if queue.resource == KUEUE_CLUSTER_QUEUES else 1
    # Where a GPU is a thousand of these, its own may be no whole number of GPUs.
    owned = queue.own_milli * per_gpu // WHOLE_GPU
    if LENDING_LIMIT in path:
        return str(owned) if lent else own
    if queue.borrower.system is not System.KAI:
        return str(owned + lent * per_gpu)
    return own + lent if isinstance(own, int | float) and own >= 0 else own


def stop(borrowing: Borrowing, now_s: float, for_whom: str, reason: str) -> Object:
    """The patch that stops a borrower, with a notice of why. Raises HoldError."""
    if borrowing.resource != VOLCANO_JOBS:
        changes = hold(borrowing.resource, _unmarked(borrowing.document), HOLDER)
    elif holder_of(borrowing.document):
        raise HoldError(f"{borrowing.name} is held by {holder_of(borrowing.document)} already")
    else:
        # The Command follows in the next reconcile.
        changes = {"metadata": hold_metadata(HOLDER, {STEP: ABORT})}
    notice = Notice(MINE, Cause.LENDING, for_whom, now_s, reason[:_LONGEST])
    uid = str(borrowing.document["metadata"].get("uid", ""))
    changes["metadata"]["annotations"][EVICTING_ANNOTATION] = notice_text(notice, uid)
    return changes


def _unmarked(document: Object) -> Object:
    """Running workloads are held by preemption alone, and those are no victims: other marks were written by users."""
    metadata = document["metadata"]
    if holder_of(document) in ("", HOLDER):
        return document
    labels = {name: value for name, value in metadata["labels"].items() if name != HELD_LABEL}
    return document | {"metadata": {**metadata, "labels": labels}}


def returned(borrowing: Borrowing) -> Object:
    """The patch that releases it."""
    if borrowing.resource == VOLCANO_JOBS:
        return {"metadata": hold_metadata(HOLDER, {STEP: RESUME})}
    return release(borrowing.resource, borrowing.document)


def advised(text: str) -> Object:
    """The patch that only reports what would be done."""
    return {"metadata": {"annotations": {ADVICE_ANNOTATION: text}}}
