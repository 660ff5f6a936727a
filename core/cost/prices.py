"""Prices of GPU-hours with the dates from which they are valid and where they were read."""

import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from importlib import resources
from typing import Any

from kopt.core.cost.metering import Milliseconds, Offer
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu

CAPACITIES = ("on-demand", "spot", "reserved")
_FIELDS = {"model", "provider", "region", "capacity", "per_gpu_hour", "currency", "from", "source"}
_MOST = Decimal(10_000)
_CURRENCY = re.compile(r"[A-Z]{3}")


class PriceError(ValueError):
    """A price book that cannot be used; the message names the entry and what is wrong."""


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for one hour, from ``from_ms`` until the next one of the same offer; 0 where its start is not known.
    Empty provider or region: any."""

    model: str
    provider: str
    region: str
    capacity: str
    micro_per_gpu_hour: int
    currency: str
    from_ms: Milliseconds
    source: str

    def is_for(self, offer: Offer) -> bool:
        return (
            self.model == offer.model
            and self.capacity == offer.capacity
            and self.provider in ("", offer.provider)
            and self.region in ("", offer.region)
        )

    @property
    def precedence(self) -> tuple[bool, bool]:
        return bool(self.region), bool(self.provider)


@dataclass(frozen=True)
class PriceBook:
    """Prices in no order."""

    prices: tuple[Price, ...]

    def with_own(self, own: "PriceBook") -> "PriceBook":
        """Entries of a user's own for a model and kind of capacity replace ours."""
        replaced = {(price.model, price.capacity) for price in own.prices}
        kept = [price for price in self.prices if (price.model, price.capacity) not in replaced]
        return PriceBook((*own.prices, *kept))

    def of(self, offer: Offer, at_ms: Milliseconds) -> Price | None:
        """The most particular one that is valid then; of those the newest."""
        valid = [price for price in self.prices if price.is_for(offer) and price.from_ms <= at_ms]
        return max(valid, key=lambda price: (price.precedence, price.from_ms)) if valid else None

    def on_demand(self, model: str, at_ms: Milliseconds) -> float | None:
        """Of a GPU-hour, whoever sells it: the median of the prices that are valid then; None without one."""
        try:
            name = find_gpu(model).name
        except UnknownGpuError:
            return None
        listed = [price for price in self.prices if (price.model, price.capacity) == (name, "on-demand")]
        valid = [price.micro_per_gpu_hour for price in listed if price.from_ms <= at_ms]
        return statistics.median(valid) / 1e6 if valid else None

    def dates(self, start_ms: Milliseconds, end_ms: Milliseconds) -> list[Milliseconds]:
        """When some price changes within a window, its ends included, ascending."""
        within = {price.from_ms for price in self.prices if start_ms < price.from_ms < end_ms}
        return sorted({start_ms, end_ms, *within})


def shipped_prices() -> PriceBook:
    """Public list prices, see ``prices.toml``. Reading a resource of this package is its only I/O."""
    return price_book(resources.files("kopt.core.cost").joinpath("prices.toml").read_text(encoding="utf-8"))


def price_book(text: str) -> PriceBook:
    """From TOML: tables ``[[price]]``. Raises PriceError."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise PriceError(f"the price book is no TOML: {error}") from error
    rows = document.get("price")
    if not isinstance(rows, list) or set(document) != {"price"}:
        raise PriceError("a price book consists of tables [[price]], and has at least one")
    return PriceBook(tuple(_prices(rows)))


def _prices(rows: list[Any]) -> Iterable[Price]:
    keys: set[tuple[str, ...]] = set()
    for number, row in enumerate(rows, 1):
        price = _price(row, f"price {number}")
        key = (price.model, price.provider, price.region, price.capacity, str(price.from_ms))
        if key in keys:
            raise PriceError(f"price {number}: a second one for {price.model} of {row.get('from')}")
        keys.add(key)
        yield price


def _price(row: Any, about: str) -> Price:
    if not isinstance(row, dict):
        raise PriceError(f"{about}: it is no table")
    if unknown := sorted(row.keys() - _FIELDS):
        raise PriceError(f"{about}: unknown {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
    capacity, currency = _text(row, "capacity", about, "on-demand"), _text(row, "currency", about, "USD")
    if capacity not in CAPACITIES:
        raise PriceError(f"{about}: capacity is {', '.join(CAPACITIES)}, not {capacity[:40]!r}")
    if not _CURRENCY.fullmatch(currency):
        raise PriceError(f"{about}: currency is three capitals (ISO 4217), not {currency[:40]!r}")
    source = _text(row, "source", about)
    if not source:
        raise PriceError(f"{about}: source is missing: say where the price was read")
    return Price(
        _model(_text(row, "model", about), about),
        _text(row, "provider", about, ""),
        _text(row, "region", about, ""),
        capacity,
        _micro(row.get("per_gpu_hour"), about),
        currency,
        _from_ms(row.get("from"), about),
        source,
    )


def _text(row: Mapping[str, Any], name: str, about: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if not isinstance(value, str):
        raise PriceError(f"{about}: {name} is {'missing' if value is None else 'no text'}")
    return value


def _model(name: str, about: str) -> str:
    try:
        return find_gpu(name).name
    except UnknownGpuError as error:
        raise PriceError(f"{about}: {error}") from error


def _micro(value: Any, about: str) -> int:
    try:
        amount = Decimal(str(value)) if not isinstance(value, bool) else Decimal("NaN")
        if not 0 <= amount <= _MOST:
            raise InvalidOperation
    except InvalidOperation as error:
        raise PriceError(f"{about}: per_gpu_hour is an amount from 0 to {_MOST:,}, not {str(value)[:40]!r}") from error
    return int((amount * 1_000_000).to_integral_value())


def _from_ms(value: Any, about: str) -> Milliseconds:
    if value is None:
        return 0
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() * 1000)
    raise PriceError(f"{about}: from is a date like 2026-01-31, without quotes")
