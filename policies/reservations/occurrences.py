"""When a reservation that recurs does, and whether several together ask for more than their pool has."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from kopt.core.scheduling.reservation import Occurrence, Reservation
from kopt.core.times import stamp

HORIZON_S = 35 * 86_400.0
"""How far ahead reservations are compared with each other: a little more than a month."""
_MOST = 1_000


class RecurrenceError(ValueError):
    """A recurrence, or a time zone, that cannot be read; the message says what was expected."""


def occurrences(reservation: Reservation, from_s: float, until_s: float) -> list[Occurrence]:
    """Those that have not ended at ``from_s`` and start before ``until_s``, in order, at most a thousand. Raises
    RecurrenceError.

    Times of day are those of its time zone: what starts at 8 does so in summer and in winter.
    """
    length_s = reservation.until_s - reservation.start_s
    if not reservation.recurrence:
        starts: Iterable[float] = [reservation.start_s]
    else:
        starts = _recurring(reservation, from_s - length_s, until_s)
    result = [Occurrence(start_s, start_s + length_s) for start_s in starts if from_s < start_s + length_s]
    return [occurrence for occurrence in result if occurrence.start_s < until_s]


def _recurring(reservation: Reservation, after_s: float, until_s: float) -> Iterator[float]:
    try:
        zone = ZoneInfo(reservation.time_zone)
    except (ValueError, OSError, KeyError):
        raise RecurrenceError(f"timeZone: {reservation.time_zone!r} is no name of a time zone") from None
    first = datetime.fromtimestamp(reservation.start_s, zone)
    try:
        # Wall-clock times are counted without a zone: the library would keep the offset of the first one.
        rule = rrulestr(reservation.recurrence, dtstart=first.replace(tzinfo=None))
        wall = datetime.fromtimestamp(max(after_s, reservation.start_s), zone).replace(tzinfo=None)
        for number, start in enumerate(rule.xafter(wall, inc=True)):
            start_s = start.replace(tzinfo=zone).astimezone(UTC).timestamp()
            if start_s >= until_s or number >= _MOST:
                return
            yield start_s
    except (ValueError, TypeError, OverflowError) as error:
        raise RecurrenceError(f"recurrence: {reservation.recurrence!r} cannot be read ({error})") from None


def overbooked(reservations: Sequence[Reservation], gpus: int, now_s: float) -> dict[str, str]:
    """Of the reservations of one pool, those beside which the older ones do not fit into ``gpus`` whole GPUs, each
    with a sentence. Raises RecurrenceError."""
    accepted: list[tuple[Occurrence, Reservation]] = []
    result = {}
    for reservation in sorted(reservations, key=lambda item: (item.created_s, item.name)):
        own = occurrences(reservation, now_s, now_s + HORIZON_S) or occurrences(reservation, now_s, float("inf"))[:1]
        problem = next((text for window in own if (text := _problem(reservation, window, own, accepted, gpus))), "")
        if problem:
            result[reservation.name] = problem
        else:
            accepted += [(window, reservation) for window in own]
    return result


def _problem(
    reservation: Reservation,
    window: Occurrence,
    own: Sequence[Occurrence],
    accepted: Sequence[tuple[Occurrence, Reservation]],
    gpus: int,
) -> str:
    if any(other.start_s < window.until_s and window.start_s < other.until_s for other in own if other != window):
        return "It recurs before it has ended; make it shorter, or let it recur less often."
    overlapping = [(o, r) for o, r in accepted if o.start_s < window.until_s and window.start_s < o.until_s]
    # The sum is largest where one of them starts.
    for at_s in sorted({max(window.start_s, other.start_s) for other, _ in overlapping}):
        beside = [r for o, r in overlapping if o.start_s <= at_s < o.until_s]
        total = reservation.gpus + sum(r.gpus for r in beside)
        if total > gpus:
            names = ", ".join(sorted({r.name for r in beside}))
            return f"At {stamp(at_s)} it and {names} would reserve {total} GPUs; the pool has {gpus}."
    return ""
