"""The status of a KaiwoReservation: its phase, the account of the occurrence, and how past ones went. Pure."""

from dataclasses import dataclass, replace

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.reservation import (
    ACCEPTED,
    MET,
    MOST_RESULTS,
    account_document,
    condition,
    result_document,
    results_of,
)
from kopt.controllers.reservations.snapshot import Accepted
from kopt.controllers.reservations.views import Reserved
from kopt.core.scheduling.reservation import Account, Phase, Result
from kopt.core.times import stamp
from kopt.policies.reservations import advanced, is_unused, opened, result_of

_SAME_S = 1.0


@dataclass(frozen=True)
class Standing:
    """Of an accepted reservation: idle GPUs that are ``held`` by pods with nodes, GPUs that its owner ``used``, and
    Workloads that were stopped for it since the last look. ``acts``: it is in mode enforce; else ``message`` says what
    is missing."""

    accepted: Accepted
    held: int = 0
    used: int = 0
    stopped: int = 0
    acts: bool = True
    message: str = ""


@dataclass(frozen=True)
class NewStatus:
    """``document``: the status to write. ``closed``: how an occurrence went that has ended."""

    document: Object
    account: Account | None
    phase: Phase
    closed: Result | None = None


def refused(reserved: Reserved, reason: str, message: str, now_s: float) -> NewStatus:
    """Of one that cannot be kept."""
    return _status(reserved, Phase.REFUSED, None, (False, reason, message), now_s)


def expired(reserved: Reserved, now_s: float) -> NewStatus:
    """Of one whose time is over."""
    return _status(reserved, Phase.EXPIRED, None, (True, "Over", "Its time is over."), now_s)


def accepted(standing: Standing, ahead_s: float, now_s: float) -> NewStatus:
    """Of one that is kept."""
    each = standing.accepted
    account = current_account(each)
    begins_s = each.occurrence.start_s - ahead_s
    if account is None and standing.acts and now_s >= begins_s:
        account = opened(each.occurrence, now_s)
    if account is not None:
        account = advanced(account, each.spec, now_s, held=standing.held, used=standing.used)
        account = replace(account, reclaimed=account.reclaimed + standing.stopped)
        if is_unused(account, each.spec, now_s) and account.released_s is None and now_s < each.occurrence.until_s:
            account = replace(account, released_s=now_s)
    message = standing.message or each.problem or f"{each.spec.gpus} GPUs of {each.pool} for {each.owner}."
    if standing.acts and each.problem:
        word = (False, "NoQuota", message)
    else:
        word = (True, "Accepted" if standing.acts else "OnlyObserved", message)
    return _status(each.reserved, phase_at(each, account, now_s), account, word, now_s, standing)


def current_account(each: Accepted) -> Account | None:
    """The account in the status if it is of this occurrence."""
    account = each.reserved.account
    if account is None or abs(account.occurrence.start_s - each.occurrence.start_s) >= _SAME_S:
        return None
    return replace(account, occurrence=each.occurrence)


def phase_at(each: Accepted, account: Account | None, now_s: float) -> Phase:
    """Where the occurrence is."""
    if account is None:
        return Phase.SCHEDULED
    if account.released_s is not None:
        return Phase.RELEASED
    if now_s >= each.occurrence.start_s:
        return Phase.ACTIVE
    return Phase.RECLAIMING if now_s >= each.occurrence.start_s - each.spec.lead_s else Phase.BACKFILLED


def _status(
    reserved: Reserved,
    phase: Phase,
    account: Account | None,
    word: tuple[bool, str, str],
    now_s: float,
    standing: Standing | None = None,
) -> NewStatus:
    closed = _closed(reserved, account, now_s)
    history = ([closed] if closed else []) + list(results_of(reserved.document))
    document: Object = {
        "observedGeneration": int(reserved.document["metadata"].get("generation") or 0),
        "phase": phase.value,
        "history": [result_document(result) for result in history[:MOST_RESULTS]],
        "conditions": [condition(reserved.document, ACCEPTED, *word, now_s)],
    }
    if standing is not None:
        occurrence = standing.accepted.occurrence
        document |= {
            "start": stamp(occurrence.start_s),
            "until": stamp(occurrence.until_s),
            "heldGpus": standing.held,
            "usedGpus": 0 if account is None else account.used,
            "backfilledGpus": 0 if account is None else account.backfilled,
        }
    if account is not None:
        document["account"] = account_document(account)
        document["conditions"].append(_met(reserved, account, now_s))
    return NewStatus(document, account, phase, closed)


def _met(reserved: Reserved, account: Account, now_s: float) -> Object:
    start_s = account.occurrence.start_s
    if account.met_s is not None:
        late_s = max(0.0, account.met_s - start_s)
        text = "Its GPUs were there in time." if not late_s else f"Its GPUs were there {late_s:.0f} s after its start."
        return condition(reserved.document, MET, True, "Met", text, now_s)
    late = now_s >= start_s
    text = "Its GPUs are not all there yet, although it has started." if late else "It has not started."
    return condition(reserved.document, MET, False, "Late" if late else "NotDue", text, now_s)


def _closed(reserved: Reserved, account: Account | None, now_s: float) -> Result | None:
    """How the occurrence of the last status went, if it is over; one that was moved before its start is forgotten."""
    last = reserved.account
    if last is None or reserved.spec is None:
        return None
    same = account is not None and abs(account.occurrence.start_s - last.occurrence.start_s) < _SAME_S
    if same or last.occurrence.start_s > now_s:
        return None
    return result_of(advanced(last, reserved.spec, min(now_s, last.occurrence.until_s), held=0, used=0), reserved.spec)


def differs(before: Object, after: Object) -> bool:
    """Whether a status has to be written: times at which nothing happened do not count."""
    return _essential(before) != _essential(after)


def _essential(status: Object) -> Object:
    account = dict(status.get("account") or {})
    for name in ("since", "usedGpuSeconds", "backfilledGpuSeconds", "lastUsedAt"):
        account.pop(name, None)
    return {**status, "account": account}
