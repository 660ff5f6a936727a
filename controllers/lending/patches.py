"""What is written onto queues and borrowers; every mark says how it is taken back."""

from collections.abc import Collection

from kopt.cluster.evictions import EVICTING_ANNOTATION, notice_text
from kopt.cluster.held import HoldError, hold, holder_of, marks, release, undo_of
from kopt.cluster.quotas import Place, note, noted, restored, with_values
from kopt.cluster.resources import VOLCANO_JOBS, Object, Resource
from kopt.cluster.volcano import ABORT, RESUME, STEP
from kopt.controllers.reallocation.views import ADVICE_ANNOTATION, HOLDER, MINE, Borrowing, QueueView
from kopt.core.evictions import Cause, Notice, System

_LONGEST = 900


def quota(queue: QueueView, lent: int) -> Object:
    """The patch that lets a queue use what it owns and ``lent`` GPUs more; nothing lent takes the marks away."""
    assert queue.document is not None
    if lent == 0 and queue.marked:
        return given_back(queue.resource, queue.document, queue.values)
    more = {place: _more(queue, own, lent) for place, (own, _) in queue.values.items()}
    # Other flavours of it may be lent to by other pools.
    known = dict(noted(undo_of(queue.document)))
    known |= {place: (own, more[place]) for place, (own, _) in queue.values.items()}
    return {"metadata": marks(HOLDER, note(known)), "spec": with_values(queue.resource, queue.document, more)}


def given_back(resource: Resource, document: Object, places: Collection[Place]) -> Object:
    """The patch that gives a queue what it owns at ``places``; its marks go with the last of them."""
    known = noted(undo_of(document))
    left = {place: value for place, value in known.items() if place not in places}
    if not left:
        return release(resource, document)
    changes = restored(resource, document, note({place: known[place] for place in known if place in places}))
    return changes | {"metadata": marks(HOLDER, note(left))}


def _more(queue: QueueView, own: object, lent: int) -> object:
    """Kueue and Volcano write quantities; KAI numbers, of which a negative one is no limit."""
    if queue.borrower.system is not System.KAI:
        return str(queue.own + lent)
    return own + lent if isinstance(own, int | float) and own >= 0 else own


def told(one: Borrowing, now_s: float, for_whom: str, reason: str) -> Object:
    """The patch that stops a borrower, and tells it and whoever keeps the ledger why. Raises HoldError."""
    if one.resource != VOLCANO_JOBS:
        changes = hold(one.resource, one.document, HOLDER)
    elif holder_of(one.document):
        raise HoldError(f"{one.name} is held by {holder_of(one.document)} already")
    else:
        # Its Command follows.
        changes = {"metadata": marks(HOLDER, {STEP: ABORT})}
    notice = Notice(MINE, Cause.LENDING, for_whom, now_s, reason[:_LONGEST])
    changes["metadata"]["annotations"][EVICTING_ANNOTATION] = notice_text(notice)
    return changes


def returned(one: Borrowing) -> Object:
    """The patch that lets it go on."""
    if one.resource == VOLCANO_JOBS:
        return {"metadata": marks(HOLDER, {STEP: RESUME})}
    return release(one.resource, one.document)


def advised(text: str) -> Object:
    """The patch that only says what would be done."""
    return {"metadata": {"annotations": {ADVICE_ANNOTATION: text}}}
