"""Values that several tools write alike."""

import re

from kopt.core.units import Bytes
from kopt.formats.gpu_metrics.samples import MetricsError, amount_bytes, number
from kopt.formats.topology.text import FormatError

_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")
_AMOUNT = re.compile(r"([\d.]{1,20})\s*([KMGT]?i?B)")
_ABSENT = re.compile(
    r"\[?(?:N/A|Not Supported|Unknown|None|Not Available|Insufficient Permissions|Unknown Error"
    r"|GPU requires reset|Not Found)\]?",
    re.IGNORECASE,
)


def pci_address(text: str, line: int = 0) -> str:
    """``0000:3b:00.0``, however many digits of the domain the tool writes; function 0 where it writes none.

    Raises FormatError.
    """
    match = _PCI.fullmatch(text.strip())
    if match is None or int(match[1] or "0", 16) >= 1 << 32:
        raise FormatError(f"{text[:60]!r} is no PCI address", line)
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4] or '0'}".lower()


def is_absent(text: str) -> bool:
    """Does the tool say that it does not know?"""
    return not text.strip() or bool(_ABSENT.fullmatch(text.strip()))


def amount(text: str, line: int = 0, unit: str = "") -> Bytes:
    """Bytes of ``81559 MiB``; 0 for what is not known. Raises FormatError."""
    if is_absent(text):
        return Bytes(0)
    match = _AMOUNT.fullmatch(text.strip() if not unit else f"{text.strip()} {unit}")
    if match is None:
        raise FormatError(f"{text[:60]!r} is no amount of memory", line)
    return amount_of(number_of(match[1], "memory", line), match[2], line)


def amount_of(value: float, unit: str, line: int = 0) -> Bytes:
    """Bytes of a number in the unit that GPU tools write. Raises FormatError."""
    try:
        return amount_bytes(value, unit, line)
    except MetricsError as error:
        raise FormatError(str(error)) from error


def number_of(text: str, what: str, line: int = 0) -> float:
    """Raises FormatError."""
    try:
        return number(text, what, line)
    except MetricsError as error:
        raise FormatError(str(error)) from error


def indexes_follow(indexes: list[int], line: int) -> None:
    """GPUs are listed from 0 without gaps; a single one may be any, as tools can be asked for one.

    Raises FormatError.
    """
    if len(set(indexes)) != len(indexes):
        twice = next(index for index in indexes if indexes.count(index) > 1)
        raise FormatError(f"GPU {twice} is listed twice", line)
    if len(indexes) > 1 and indexes != list(range(len(indexes))):
        missing = next((n for n in range(max(indexes) + 1) if n not in indexes), None)
        what = f"GPU {missing} is missing" if missing is not None else "they are out of order"
        raise FormatError(f"the GPUs are listed as {', '.join(map(str, indexes[:32]))}: {what}", line)
