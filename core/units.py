"""Integer quantities. GPU shares are milli-GPU and memory is bytes, so that 0.1 + 0.2 is 0.3.

Parsing follows the Kubernetes quantity grammar (apimachinery ``resource.Quantity``) for the suffixes
that occur on GPU workloads.
"""

import functools
import re
from decimal import ROUND_CEILING, Decimal
from typing import NewType

Bytes = NewType("Bytes", int)
MilliGpu = NewType("MilliGpu", int)
Seconds = NewType("Seconds", float)

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
WHOLE_GPU = MilliGpu(1000)

_FACTORS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": KIB,
    "Mi": MIB,
    "Gi": GIB,
    "Ti": TIB,
    "Pi": 1 << 50,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "B": 1,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class UnitError(ValueError):
    """A quantity that cannot be read; the message says what was expected."""


def parse_bytes(text: str) -> Bytes:
    """Bytes of a quantity such as ``512Mi``, ``1GiB``, ``80GB`` or ``1024``; fractions round up.

    Raises:
        UnitError: not a quantity, or a suffix that is none of memory's.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _FACTORS:
        raise UnitError(f"{text!r} is not an amount of memory; write it like 512Mi, 1GiB or 80GB")
    exact = Decimal(match[1]) * _FACTORS[match[2]]
    return Bytes(int(exact.to_integral_value(ROUND_CEILING)))


def parse_milli_gpu(text: str) -> MilliGpu:
    """Milli-GPU of a GPU count such as ``2``, ``0.25`` or ``250m``; finer shares than a thousandth are refused.

    Raises:
        UnitError: not a count of GPUs, or finer than one milli-GPU.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(m?)\s*", text)
    if match is None:
        raise UnitError(f"{text!r} is not a number of GPUs; write it like 2, 0.5 or 500m")
    milli = Decimal(match[1]) * (1 if match[2] else 1000)
    if milli != milli.to_integral_value():
        raise UnitError(f"{text!r} is finer than a thousandth of a GPU")
    return MilliGpu(int(milli))


def format_bytes(amount: int) -> str:
    """A short binary rendering for people: ``1.5 GiB``; exact below one KiB."""
    size = float(amount)
    for suffix in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or suffix == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {suffix}" if suffix == "B" else f"{size:.1f} {suffix}"


def format_span(span_s: float) -> str:
    """A span of time for people: ``24 s``, ``40 min``, ``5.5 h``, ``6.8 days``."""
    if 0 < span_s < 59.5:
        return f"{span_s:.2g} s"
    if span_s < 2 * 3600:
        return f"{span_s / 60:.0f} min"
    hours = span_s / 3600
    return f"{hours:.3g} h" if hours < 48 else f"{hours / 24:.3g} days"


def format_gpus(milli: int) -> str:
    """GPUs for people: ``2``, ``0.25``."""
    whole, rest = divmod(milli, 1000)
    return str(whole) if not rest else f"{whole}.{rest:03d}".rstrip("0")


def counted(number: str | int, what: str) -> str:
    """``1 GPU``, ``2 GPUs``, ``0.25 GPUs``."""
    return f"{number} {what}" if str(number) == "1" else f"{number} {what}s"


_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([mkMGTPE]|[KMGTPE]i)?|[eE](\d{1,2}))")
_SUFFIXES = {
    None: 1000,
    "m": 1,
    "k": 10**6,
    "M": 10**9,
    "G": 10**12,
    "T": 10**15,
    "P": 10**18,
    "E": 10**21,
    "Ki": KIB * 1000,
    "Mi": MIB * 1000,
    "Gi": GIB * 1000,
    "Ti": TIB * 1000,
    "Pi": 1000 << 50,
    "Ei": 1000 << 60,
}
_MOST_UNITS = 1 << 60
_WRITTEN = tuple((suffix, _SUFFIXES[suffix]) for suffix in ("Pi", "Ti", "Gi", "Mi"))


def parse_thousandths(value: object) -> int:
    """Thousandths of a Kubernetes quantity such as ``8``, ``0.5``, ``500m``, ``64Gi`` or ``1e3``, exactly.

    Raises:
        UnitError: not a quantity, below 0, beyond an exbi, or finer than a thousandth.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_UNITS:
        return value * 1000
    written = repr(value) if isinstance(value, float) else value
    match = _AMOUNT.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise UnitError(f"{value!r} is not an amount; write it like 8, 0.5, 500m or 64Gi")
    exact = Decimal(match[1]) * _SUFFIXES[match[2]] * 10 ** int(match[3] or 0)
    if exact != exact.to_integral_value():
        raise UnitError(f"{value!r} is finer than a thousandth")
    if exact > 1000 * _MOST_UNITS:
        raise UnitError(f"{value!r} is more than Kubernetes can count")
    return int(exact)


@functools.lru_cache(maxsize=4096)
def format_thousandths(amount: int) -> str:
    """The Kubernetes quantity of so many thousandths, such as ``8``, ``500m`` or ``64Gi``; read back alike."""
    for suffix, factor in _WRITTEN:
        if amount and amount % factor == 0:
            return f"{amount // factor}{suffix}"
    return f"{amount}m" if amount % 1000 else str(amount // 1000)
