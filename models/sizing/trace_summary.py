"""The result of a run on the fake device, small enough to send: a code estimate as a document, and read back carefully.

A document comes from a caller that ran the script itself (``kopt recommend``); the endpoint runs no script.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from kopt.core.reason import Reason
from kopt.core.units import Bytes
from kopt.core.workload.sizing import SCHEMA, MemoryBreakdown, Method, RankMemory, TraceCoverage
from kopt.models.sizing.code import KERNELS, CodeEstimate, KernelLoad
from kopt.models.sizing.table import INPUTS

_MOST_BYTES = 1 << 50
_MOST_COUNT = 1 << 62
_MOST_RANKS, _MOST_TEXTS, _LONGEST = 65_536, 200, 4096


def summary(code: CodeEstimate) -> dict[str, Any]:
    """The document of a code estimate, without numbers that are not known (NaN) or that nothing is learned from."""
    return {
        "schema": SCHEMA,
        "method": code.method.value,
        "trace": code.coverage.value,
        "allocated_bytes": int(code.allocated_bytes),
        "reserved_bytes": int(code.reserved_bytes),
        "breakdown": code.breakdown.to_dict(),
        "steps": code.steps,
        "spread": code.spread,
        "inputs": {name: value for name, value in code.inputs.items() if name in INPUTS and math.isfinite(value)},
        "kernels": {name: vars(load) for name, load in code.kernels.items()},
        "per_rank": [rank_memory.to_dict() for rank_memory in code.per_rank],
        "assumptions": list(code.assumptions),
        "warnings": list(code.warnings),
        "reasons": [reason.to_dict() for reason in code.reasons],
        "most_share": code.most_share,
        "below": code.below,
        "above": code.above,
        "search_bytes": int(code.search_bytes),
        "workspace_bytes": int(code.workspace_bytes),
    }


def read_summary(document: Any) -> CodeEstimate:
    """The code estimate of a document that a stranger may have written. Raises ValueError, which names the field."""
    result = _table(document, "the summary")
    if result.get("schema") != SCHEMA:
        raise ValueError(f"not a summary of a trace: an object with schema {SCHEMA!r} is expected")
    allocated, reserved = _amount(result, "allocated_bytes"), _amount(result, "reserved_bytes")
    if not 0 < allocated <= reserved:
        raise ValueError("allocated_bytes lie above 0 and reserved_bytes at or above them")
    return CodeEstimate(
        _of(Method, result, "method"),
        _of(TraceCoverage, result, "trace"),
        Bytes(allocated),
        Bytes(reserved),
        _breakdown(result.get("breakdown"), "breakdown"),
        {name: _real(value, f"inputs.{name}") for name, value in _checked(result, "inputs", INPUTS)},
        {name: _load(value, f"kernels.{name}") for name, value in _checked(result, "kernels", KERNELS)},
        _amount(result, "steps", _MOST_COUNT),
        tuple(_rank(item, f"per_rank.{n}") for n, item in enumerate(_list(result, "per_rank", _MOST_RANKS))),
        _factor(result, "spread"),
        _texts(result, "assumptions"),
        _texts(result, "warnings"),
        tuple(_reason(item, f"reasons.{n}") for n, item in enumerate(_list(result, "reasons", _MOST_TEXTS))),
        _share(result.get("most_share")),
        _factor(result, "below"),
        _factor(result, "above"),
        Bytes(_amount(result, "search_bytes")),
        Bytes(_amount(result, "workspace_bytes")),
    )


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


def _checked(document: Mapping[str, Any], name: str, names: Sequence[str]) -> list[tuple[str, Any]]:
    table = _table(document.get(name, {}), name)
    if strange := sorted(str(key)[:60] for key in table.keys() - set(names)):
        raise ValueError(f"{name} has no {strange[0]!r}")
    return list(table.items())


def _amount(document: Mapping[str, Any], name: str, most: int = _MOST_BYTES, path: str = "") -> int:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{path}{name} is a whole number from 0 to {most:,}")
    return value


def _real(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise ValueError(f"{name} is no number")
    return float(value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e18


def _factor(document: Mapping[str, Any], name: str) -> float:
    factor = _real(document.get(name, 1.0), name)
    if not 1 <= factor <= 1000:
        raise ValueError(f"{name} is a factor from 1 to 1000")
    return factor


def _share(value: Any) -> float | None:
    if value is None:
        return None
    share = _real(value, "most_share")
    if not 0 < share <= 1:
        raise ValueError("most_share lies above 0 and is at most 1")
    return share


def _breakdown(value: Any, path: str) -> MemoryBreakdown:
    table = _table(value, path)
    return MemoryBreakdown(
        **{field.name: Bytes(_amount(table, field.name, path=f"{path}.")) for field in fields(MemoryBreakdown)}
    )


def _load(value: Any, path: str) -> KernelLoad:
    table = _table(value, path)
    return KernelLoad(
        **{field.name: _amount(table, field.name, _MOST_COUNT, f"{path}.") for field in fields(KernelLoad)}
    )


def _rank(value: Any, path: str) -> RankMemory:
    table = _table(value, path)
    return RankMemory(
        _amount(table, "rank", _MOST_RANKS, f"{path}."),
        Bytes(_amount(table, "peak_bytes", path=f"{path}.")),
        _breakdown(table.get("breakdown"), f"{path}.breakdown"),
    )


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f"{name} is no text of at most {_LONGEST} characters")
    return value


def _texts(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{name}.{n}") for n, item in enumerate(_list(document, name, _MOST_TEXTS)))


def _reason(value: Any, path: str) -> Reason:
    table = _table(value, path)
    numbers = _table(table.get("numbers", {}), f"{path}.numbers")
    if len(numbers) > 20 or not all(isinstance(number, str) or _finite(number) for number in numbers.values()):
        raise ValueError(f"{path}.numbers holds at most 20 numbers and words")
    return Reason(
        _text(table.get("code"), f"{path}.code"),
        _text(table.get("message"), f"{path}.message"),
        {_text(name, f"{path}.numbers"): item for name, item in numbers.items()},
    )
