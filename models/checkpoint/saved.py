"""A machine as JSON and back: sessions outlive the process that holds them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from kopt.core.checkpoint import JobState
from kopt.models.checkpoint.machine import Durable, Habits, Machine, OpenWrite

_LISTS = ("durations_s", "step_gaps_s", "saved_at_s", "saved_steps", "saved_counts", "steps_seen")


def machine_to(machine: Machine) -> dict[str, Any]:
    found = asdict(machine)
    found["habits"].update({name: list(getattr(machine.habits, name)) for name in _LISTS})
    return {**found, "writers": sorted(machine.writers)}


def machine_from(found: Mapping[str, Any]) -> Machine:
    """Raises KeyError, TypeError or ValueError for what ``machine_to`` did not write."""
    names = {one.name for one in fields(Machine)}
    if set(found) != names:
        raise ValueError("a machine of another version")
    learned = dict(found["habits"])
    habits = Habits(
        **{**learned, **{name: deque(map(_entry, learned[name]), getattr(Habits(), name).maxlen) for name in _LISTS}}
    )
    machine = Machine(
        **{name: found[name] for name in names - {"habits", "open", "durable", "state", "_before", "writers"}}
    )
    machine.habits, machine.writers = habits, set(found["writers"])
    machine.state, machine._before = JobState(found["state"]), JobState(found["_before"])
    machine.durable = Durable(**found["durable"]) if found["durable"] else None
    machine.open = {writer: _open(one) for writer, one in found["open"].items()}
    return machine


def _open(found: Mapping[str, Any]) -> OpenWrite:
    ending = found["ending"]
    return OpenWrite(**{**found, "ending": None if ending is None else tuple(ending)})


def _entry(found: Any) -> Any:
    return tuple(found) if isinstance(found, list) else found
