"""What an import makes of the queues of an engine, and what it has to leave as it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kopt.core.scheduling.queue_tree import KaiwoPool, KaiwoQueue
from kopt.core.units import UnitError, parse_thousandths


@dataclass(frozen=True)
class Imported:
    """KaiwoQueues and KaiwoPools that compile to the objects they were read from; ``skipped`` says what is in none."""

    queues: tuple[KaiwoQueue, ...]
    pools: tuple[KaiwoPool, ...] = ()
    skipped: tuple[str, ...] = ()


class NotImportable(ValueError):
    """An object that no KaiwoQueue can mean; the message says why."""


def amount(value: Any, where: str) -> int:
    """Thousandths of a quantity; raises NotImportable."""
    try:
        return parse_thousandths(value)
    except UnitError as error:
        raise NotImportable(f"{where}: {error}") from None


def scaled(value: Any, unit: int, where: str) -> int:
    """Thousandths of a number that counts ``unit`` thousandths; raises NotImportable."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise NotImportable(f"{where}: {value!r} is no amount")
    exact = Decimal(repr(value)) * unit
    if exact != exact.to_integral_value():
        raise NotImportable(f"{where}: {value!r} is finer than a thousandth")
    return int(exact)


def without(document: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A mapping without some of its keys."""
    return {key: value for key, value in document.items() if key not in keys}
