"""How evidence adds up: each code of each GPU has one load, which halves in its half-life.

A decaying sum needs no history: what a load was at one time says all that counts at any later one. So the state of a
node is one small entry per code and GPU, and lies on its object.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kopt.core.hardware.health import CodeKind, Entry, Evidence, EvidenceClass, HealthCode, code_of

CONDEMNED_FROM = 1.0
NEGLIGIBLE = 0.01
AFTER_REPAIR = 0.25
"""What was seen before a repair counts so much of what it did: who fails again soon after is condemned sooner."""
Entries = Mapping[tuple[str, str], Entry]
"""By code and GPU."""


@dataclass(frozen=True)
class Thresholds:
    """Loads from which a verdict holds, and below which it ends: it does not swing on a load that stays the same."""

    suspect: float = 0.5
    not_suspect: float = 0.35
    condemned: float = CONDEMNED_FROM
    not_condemned: float = 0.4


def load_of(entry: Entry, now_s: float, code: HealthCode | None = None) -> float:
    """What an entry weighs now. What lasts does not decay; an application's fault weighs nothing."""
    code = code or code_of(entry.code)
    if code.of is EvidenceClass.APPLICATION:
        return 0.0
    if entry.lasts:
        return entry.load
    decayed: float = entry.load * 2.0 ** (-max(0.0, now_s - entry.at_s) / code.half_life_s)
    return decayed


def add(entries: Entries, evidence: Iterable[Evidence]) -> dict[tuple[str, str], Entry]:
    """The entries with further evidence, in its order. What is not against a GPU (amount 0) ends a state."""
    result = dict(entries)
    for item in evidence:
        key = item.code, item.gpu
        entry = _added(result.get(key), item)
        if entry is not None:
            result[key] = entry
    return result


def _added(entry: Entry | None, item: Evidence) -> Entry | None:
    code = code_of(item.code)
    now_s = max(item.at_s, entry.at_s) if entry is not None else item.at_s
    before = load_of(entry, now_s, code) if entry is not None else 0.0
    if item.amount <= 0:
        # Over: from now on it decays. Of a sticky code only a repair says so.
        over = entry is not None and entry.lasts and code.kind is CodeKind.STATE
        return replace(entry, load=before, at_s=now_s, lasts=False) if over and entry is not None else entry
    if code.kind is CodeKind.STATE:
        load, lasts, count = max(before, code.weight), True, 0.0 if entry is not None and entry.lasts else 1.0
    elif code.kind is CodeKind.DURATION:
        load, lasts, count = min(code.weight, before + code.weight * item.amount / code.full_s), False, item.amount
    else:
        load, lasts, count = before + code.weight * item.amount, code.sticky, item.amount
    first_s, seen = (entry.first_s, entry.count) if entry is not None else (item.at_s, 0.0)
    detail = item.detail or (entry.detail if entry is not None else "")
    return Entry(
        item.code, item.gpu, min(load, code.most), now_s, first_s, item.at_s, seen + count, detail, lasts=lasts
    )


def repaired(entries: Entries, at_s: float) -> dict[tuple[str, str], Entry]:
    """The entries after the node was repaired: what was seen before weighs a part of what it did, and decays. States
    that last are seen again by whoever reports them."""
    result = {}
    for key, entry in entries.items():
        if entry.last_s > at_s:
            result[key] = entry
            continue
        load = min(load_of(entry, at_s), CONDEMNED_FROM) * AFTER_REPAIR
        result[key] = replace(entry, load=load, at_s=max(at_s, entry.last_s), lasts=False)
    return result


def pruned(entries: Entries, now_s: float, keep_s: float = 86400.0) -> dict[tuple[str, str], Entry]:
    """Without entries that weigh nothing any more and were last seen longer ago than ``keep_s``."""
    return {
        key: entry
        for key, entry in entries.items()
        if entry.lasts or load_of(entry, now_s) >= NEGLIGIBLE or now_s - entry.last_s < keep_s
    }
