"""Reading the JSON that AMD's tools print, with the line of what is wrong."""

import json
from typing import Any

from kopt.core.units import Bytes
from kopt.formats.gpu_metrics.samples import MetricsError, amount_bytes, checked, number, share


def decode(text: str) -> tuple[Any, int]:
    """The document and the line it begins on; warnings that the tools print before it are left out.

    Raises MetricsError for what is no JSON or is cut.
    """
    lines = checked(text).splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if line.lstrip()[:1] in ("{", "[")), None)
    if first is None:
        raise MetricsError(f"no JSON: {lines[0].strip()[:100]!r}; run the tool with --json", 1)
    try:
        return json.loads("".join(lines[first:]), parse_constant=_refuse, object_pairs_hook=_once), first + 1
    except json.JSONDecodeError as error:
        raise MetricsError(f"not JSON ({error.msg}); is it cut?", first + error.lineno) from error
    except RecursionError as error:
        raise MetricsError("JSON that is nested too deeply", first + 1) from error


def measured(value: Any, what: str, unit: str) -> float | None:
    """A number of ``{"value": 1, "unit": "%"}``, ``"1 %"``, ``"1"`` or ``1``; None for N/A. Raises MetricsError."""
    if isinstance(value, dict):
        if value.get("unit", unit) != unit and unit == "%":
            raise MetricsError(f"{what} is in {value.get('unit')!r}, not in {unit}")
        value = value.get("value")
    if value is None or (isinstance(value, str) and value.strip().upper() in ("N/A", "")):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise MetricsError(f"{what} is {str(value)[:60]!r}, not a number")
    return number(str(value).removesuffix(unit).strip(), what)


def memory(value: Any, what: str, unit: str) -> Bytes | None:
    """Bytes; ``unit`` is that of a bare number. Raises MetricsError."""
    if isinstance(value, dict) and isinstance(value.get("unit"), str):
        unit = value["unit"]
    result = measured(value, what, unit)
    return None if result is None else amount_bytes(result, unit)


def percentage(value: Any, what: str) -> float | None:
    """A share. Raises MetricsError."""
    result = measured(value, what, "%")
    return None if result is None else share(result)


def _refuse(constant: str) -> float:
    raise MetricsError(f"{constant} is no figure")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise MetricsError("a key stands twice in one object")
    return result
