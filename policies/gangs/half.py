"""Gangs that hold nodes below their minimum for longer than the hold."""

from kopt.policies.gangs.model import Gang, GangSettings, GangSnapshot


def half_placed(snapshot: GangSnapshot, settings: GangSettings) -> list[Gang]:
    """The longest first."""
    gangs = [
        gang for gang in snapshot.gangs if gang.is_half_placed and snapshot.now_s - gang.since_s >= settings.hold_s
    ]
    return sorted(gangs, key=lambda gang: (gang.since_s, gang.name))


def due_in_s(snapshot: GangSnapshot, settings: GangSettings) -> float | None:
    """In how many seconds the next gang has been half-placed for as long as the hold; None where none is."""
    remaining_s = [gang.since_s + settings.hold_s - snapshot.now_s for gang in snapshot.gangs if gang.is_half_placed]
    return min((seconds for seconds in remaining_s if seconds > 0), default=None)
