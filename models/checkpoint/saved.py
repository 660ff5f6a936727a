"""A machine as JSON and back: sessions outlive the process that holds them."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from typing import Any

from kopt.core.checkpoint import JobState
from kopt.models.checkpoint.machine import Machine
from kopt.models.checkpoint.refrains import Refrain, Refrains
from kopt.models.checkpoint.writes import Durable, Habits, OpenWrite

_PARTS = frozenset({"habits", "refrains", "open", "durable", "state", "_before"})


def machine_to(machine: Machine) -> dict[str, Any]:
    found = {one.name: getattr(machine, one.name) for one in fields(Machine) if one.name not in _PARTS}
    habits, refrains = machine.habits, machine.refrains
    return {
        **found,
        "state": machine.state, "_before": machine._before,
        "durable": asdict(machine.durable) if machine.durable else None,
        "open": {writer: asdict(one) for writer, one in machine.open.items()},
        "habits": {one.name: _plain(getattr(habits, one.name)) for one in fields(Habits)},
        "refrains": {
            **{one.name: _plain(getattr(refrains, one.name)) for one in fields(Refrains)},
            "known": [[key, *astuple(one)] for key, one in refrains.known.items()],
        },
    }  # fmt: skip


def machine_from(found: Mapping[str, Any]) -> Machine:
    """Raises KeyError, TypeError or ValueError for what ``machine_to`` did not write."""
    names = {one.name for one in fields(Machine)}
    if set(found) != names:
        raise ValueError("a machine of another version")
    machine = Machine(**{name: found[name] for name in names - _PARTS})
    machine.state, machine._before = JobState(found["state"]), JobState(found["_before"])
    machine.durable = Durable(**found["durable"]) if found["durable"] else None
    machine.open = {writer: _open(one) for writer, one in found["open"].items()}
    _fill(machine.habits, found["habits"])
    _fill(machine.refrains, found["refrains"])
    machine.refrains.known = {int(key): Refrain(*one) for key, *one in found["refrains"]["known"]}
    return machine


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, deque) else value


def _fill(holder: Habits | Refrains, found: Mapping[str, Any]) -> None:
    """Puts what was saved where it belongs; deques keep their lengths."""
    if set(found) != {one.name for one in fields(holder)}:
        raise ValueError("habits of another version")
    for name, value in found.items():
        known = getattr(holder, name)
        setattr(holder, name, deque(map(_entry, value), known.maxlen) if isinstance(known, deque) else value)
    if isinstance(holder, Refrains):
        holder.last = {writer: _entry(one) for writer, one in holder.last.items()}


def _open(found: Mapping[str, Any]) -> OpenWrite:
    ending = found["ending"]
    return OpenWrite(**{**found, "ending": None if ending is None else tuple(ending)})


def _entry(found: Any) -> Any:
    return tuple(found) if isinstance(found, list) else found
