"""Usage × price, in integers: lines sum to the total whatever they are grouped by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kopt.core.cost.metering import GPU_HOUR, MilliGpuMs, Offer
from kopt.core.cost.prices import Price


@dataclass(frozen=True, slots=True)
class Usage:
    """What one subject used of an offer while one price was valid; without a price it cannot be charged."""

    subject: str
    node_uid: str
    offer: Offer
    price: Price | None
    used: MilliGpuMs


@dataclass(frozen=True, slots=True)
class Line:
    """``micro``: millionths of the currency; None where no price is known."""

    usage: Usage
    micro: int | None


def exact(used: MilliGpuMs, price: Price) -> int:
    """In 1/GPU_HOUR of a millionth."""
    return used * price.micro_per_gpu_hour


def rounded(amount: int) -> int:
    """Millionths, half up."""
    return (2 * amount + GPU_HOUR) // (2 * GPU_HOUR)


def amounts(charges: Sequence[tuple[MilliGpuMs, Price | None]]) -> list[int | None]:
    """Millionths of each usage at its price, None without one. Of each currency they sum to the exact total, rounded
    once: the largest remainders are rounded up."""
    micro: list[int | None] = [None] * len(charges)
    remainders: dict[str, list[tuple[int, int]]] = {}
    totals: dict[str, int] = {}
    for row, (used, price) in enumerate(charges):
        if price is None:
            continue
        amount = exact(used, price)
        micro[row], remainder = divmod(amount, GPU_HOUR)
        currency = price.currency
        totals[currency] = totals.get(currency, 0) + amount
        remainders.setdefault(currency, []).append((-remainder, row))
    for currency, total in totals.items():
        rounded_up = rounded(total) - sum(micro[row] or 0 for _, row in remainders[currency])
        for _, row in sorted(remainders[currency])[:rounded_up]:
            micro[row] = (micro[row] or 0) + 1
    return micro


def invoice(usages: Iterable[Usage]) -> list[Line]:
    """A line for each usage, with ``amounts``."""
    lines = list(usages)
    micro = amounts([(usage.used, usage.price) for usage in lines])
    return [Line(usage, amount) for usage, amount in zip(lines, micro, strict=True)]


def total_micro(lines: Iterable[Line]) -> Mapping[str, int]:
    """By currency."""
    result: dict[str, int] = {}
    for line in lines:
        if line.usage.price is not None and line.micro is not None:
            result[line.usage.price.currency] = result.get(line.usage.price.currency, 0) + line.micro
    return result
