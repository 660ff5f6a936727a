"""What a run on the fake device said, small enough to send: a code estimate as a document, and read back carefully.

A document comes from a caller that ran the script itself (``kopt recommend``); the endpoint runs no script.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from kopt.core.reason import Reason
from kopt.core.sizing import SCHEMA, MemoryBreakdown, Method, RankMemory, TraceCoverage
from kopt.core.units import Bytes
from kopt.models.sizing.code import KERNELS, CodeEstimate, KernelLoad
from kopt.models.sizing.table import INPUTS

_MOST_BYTES = 1 << 50
_MOST_COUNT = 1 << 62
_MOST_RANKS, _MOST_TEXTS, _LONGEST = 65_536, 200, 4096


def summary(code: CodeEstimate) -> dict[str, Any]:
    """The document of a code estimate; numbers that are not known (NaN) are left out."""
    return {
        "schema": SCHEMA, "method": code.method.value, "trace": code.coverage.value,
        "allocated_bytes": int(code.allocated_bytes), "reserved_bytes": int(code.reserved_bytes),
        "breakdown": code.breakdown.to_dict(), "steps": code.steps, "spread": code.spread,
        "inputs": {name: value for name, value in code.inputs.items() if math.isfinite(value)},
        "kernels": {name: vars(load) for name, load in code.kernels.items()},
        "per_rank": [one.to_dict() for one in code.per_rank],
        "assumptions": list(code.assumptions), "warnings": list(code.warnings),
        "reasons": [one.to_dict() for one in code.reasons],
    }  # fmt: skip


def read_summary(document: Any) -> CodeEstimate:
    """The code estimate of a document that a stranger may have written. Raises ValueError, which names the field."""
    found = _table(document, "the summary")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"not a summary of a trace: an object with schema {SCHEMA!r} is expected")
    allocated, reserved = _amount(found, "allocated_bytes"), _amount(found, "reserved_bytes")
    if not 0 < allocated <= reserved:
        raise ValueError("allocated_bytes lie above 0 and reserved_bytes at or above them")
    return CodeEstimate(
        _of(Method, found, "method"), _of(TraceCoverage, found, "trace"), Bytes(allocated), Bytes(reserved),
        _breakdown(found.get("breakdown"), "breakdown"),
        {name: _real(value, f"inputs.{name}") for name, value in _known(found, "inputs", INPUTS)},
        {name: _load(value, f"kernels.{name}") for name, value in _known(found, "kernels", KERNELS)},
        _amount(found, "steps", _MOST_COUNT),
        tuple(_rank(one, f"per_rank.{n}") for n, one in enumerate(_list(found, "per_rank", _MOST_RANKS))),
        _spread(found.get("spread", 1.0)), _texts(found, "assumptions"), _texts(found, "warnings"),
        tuple(_reason(one, f"reasons.{n}") for n, one in enumerate(_list(found, "reasons", _MOST_TEXTS))),
    )  # fmt: skip


def _of(kind: Any, document: Mapping[str, Any], name: str) -> Any:
    try:
        return kind(document.get(name))
    except ValueError:
        raise ValueError(f"{name} is one of {', '.join(kind)}") from None


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is no object")
    return value


def _list(document: Mapping[str, Any], name: str, most: int) -> Sequence[Any]:
    value = document.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{name} is a list of at most {most:,}")
    return value


def _known(document: Mapping[str, Any], name: str, names: Sequence[str]) -> list[tuple[str, Any]]:
    table = _table(document.get(name, {}), name)
    if strange := sorted(str(one)[:60] for one in table.keys() - set(names)):
        raise ValueError(f"{name} has no {strange[0]!r}")
    return list(table.items())


def _amount(document: Mapping[str, Any], name: str, most: int = _MOST_BYTES, place: str = "") -> int:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{place}{name} is a whole number from 0 to {most:,}")
    return value


def _real(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise ValueError(f"{name} is no number")
    return float(value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e18


def _spread(value: Any) -> float:
    spread = _real(value, "spread")
    if not 1 <= spread <= 1000:
        raise ValueError("spread is a factor from 1 to 1000")
    return spread


def _breakdown(value: Any, place: str) -> MemoryBreakdown:
    table = _table(value, place)
    return MemoryBreakdown(
        **{one.name: Bytes(_amount(table, one.name, place=f"{place}.")) for one in fields(MemoryBreakdown)}
    )


def _load(value: Any, place: str) -> KernelLoad:
    table = _table(value, place)
    return KernelLoad(**{one.name: _amount(table, one.name, _MOST_COUNT, f"{place}.") for one in fields(KernelLoad)})


def _rank(value: Any, place: str) -> RankMemory:
    table = _table(value, place)
    return RankMemory(
        _amount(table, "rank", _MOST_RANKS, f"{place}."), Bytes(_amount(table, "peak_bytes", place=f"{place}.")),
        _breakdown(table.get("breakdown"), f"{place}.breakdown"),
    )  # fmt: skip


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{name} is no text of at most {_LONGEST} characters")
    return value


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_text(one, f"{name}.{n}") for n, one in enumerate(_list(document, name, _MOST_TEXTS)))


def _reason(value: Any, place: str) -> Reason:
    table = _table(value, place)
    numbers = _table(table.get("numbers", {}), f"{place}.numbers")
    if len(numbers) > 20 or not all(isinstance(one, str) or _finite(one) for one in numbers.values()):
        raise ValueError(f"{place}.numbers holds at most 20 numbers and words")
    return Reason(_text(table.get("code"), f"{place}.code"), _text(table.get("message"), f"{place}.message"),
                  {_text(name, f"{place}.numbers"): one for name, one in numbers.items()})  # fmt: skip
