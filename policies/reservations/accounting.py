"""The account of an occurrence: when its GPUs were there, and what they were used for."""

from dataclasses import replace

from kopt.core.scheduling.reservation import Account, Occurrence, Reservation, Result


def opened(occurrence: Occurrence, now_s: float) -> Account:
    """The account of an occurrence for which GPUs are held from now on."""
    return Account(occurrence, now_s, now_s)


def advanced(account: Account, reservation: Reservation, now_s: float, *, held: int, used: int) -> Account:
    """The account at ``now_s``: ``held`` idle GPUs are kept for it and its owner's jobs use ``used``, from now on.

    Before the start, what is neither is used by others.
    """
    start_s, until_s = account.occurrence.start_s, account.occurrence.until_s
    before_s = max(0.0, min(now_s, start_s) - min(account.since_s, start_s))
    inside_s = max(0.0, min(now_s, until_s) - max(min(account.since_s, until_s), start_s))
    used = min(used, reservation.gpus) if start_s <= now_s < until_s else 0
    was_used_s = now_s if account.used or used else account.last_used_s
    is_met = account.met_s is None and now_s < until_s and held + used >= reservation.gpus
    ready_s = start_s - reservation.lead_s
    return replace(
        account,
        since_s=max(now_s, account.since_s),
        used=used,
        backfilled=max(0, reservation.gpus - held) if now_s < start_s else 0,
        used_gpu_s=account.used_gpu_s + inside_s * account.used,
        backfilled_gpu_s=account.backfilled_gpu_s + before_s * account.backfilled,
        last_used_s=was_used_s,
        met_s=now_s if is_met and now_s >= ready_s else account.met_s,
    )


def is_unused(account: Account, reservation: Reservation, now_s: float) -> bool:
    """Whether its owner has left it alone for so long that it is given back: since its start, since its GPUs were
    there, or since its last use."""
    if account.released_s is not None:
        return True
    if account.used or account.met_s is None:
        return False
    since_s = max(account.occurrence.start_s, account.met_s, account.last_used_s or 0.0)
    return now_s >= since_s + reservation.unused_after_s


def result_of(account: Account, reservation: Reservation) -> Result:
    """Once it has ended."""
    occurrence = account.occurrence
    before_s = max(0.0, occurrence.start_s - account.opened_s)
    inside_s = occurrence.until_s - occurrence.start_s
    return Result(
        occurrence,
        account.met_s,
        min(1.0, account.used_gpu_s / (reservation.gpus * inside_s)),
        min(1.0, account.backfilled_gpu_s / (reservation.gpus * before_s)) if before_s else 0.0,
        account.reclaimed,
        account.released_s,
    )
