"""Reads what the meter has stored: where, of which time, at which prices."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import seconds

if TYPE_CHECKING:
    from kopt.controllers.meter.store import CostStore, Window
    from kopt.core.cost.prices import PriceBook

Prices = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="A price book; its entries go before the shipped ones.")
]
PriceOption = Annotated[
    float | None, typer.Option("--price", min=0, metavar="AMOUNT", help="Of a GPU-hour, where no price book has one.")
]
SinceOption = Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back.")]


@dataclass(frozen=True)
class Question:
    since: str
    prices: Path | None
    price: float | None


@dataclass(frozen=True)
class Source:
    """``close`` it after use."""

    store: "CostStore"
    window: "Window"
    book: "PriceBook"


@contextmanager
def metered(question: Question) -> Iterator[Source]:
    """What was metered, closed afterwards. Raises Refused where it cannot be read."""
    from kopt.serving.base.database.interface import DatabaseError

    source = opened(question)
    try:
        yield source
    except DatabaseError as error:
        raise Refused(f"what was metered cannot be read: {error}") from error
    finally:
        source.store.close()


def opened(question: Question) -> Source:
    """Ends the process where nothing was metered."""
    from kopt.controllers.meter.store import CostStore
    from kopt.core.settings import SettingsError
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import location
    from kopt.serving.base.environment import load_settings

    span_ms = seconds(question.since, "--since") * 1000
    book = read_book(question.prices)
    try:
        where = location(load_settings(), "cost")
        if isinstance(where, Path) and not where.is_file():
            raise Refused(f"nothing was metered: {where} is not there; see kopt controller meter --help")
        store = CostStore(where)
        metered_ms = store.metered_ms()
        if metered_ms is None:
            raise Refused("nothing was metered yet; see kopt controller meter --help")
        now_ms = int(time.time() * 1000)
        window = store.window(now_ms - span_ms, now_ms)
        return Source(store, window, _with_default(store, window, book, question.price))
    except (DatabaseError, SettingsError) as error:
        raise Refused(f"what was metered cannot be read: {error}") from error


def read_book(path: Path | None) -> "PriceBook":
    """The shipped prices, and a user's own before them."""
    from kopt.core.cost.prices import PriceError, price_book, shipped_prices

    if path is None:
        return shipped_prices()
    try:
        return shipped_prices().with_own(price_book(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, PriceError) as error:
        usage_error(str(error), "--prices")


def _with_default(store: "CostStore", window: "Window", book: "PriceBook", price: float | None) -> "PriceBook":
    if price is None:
        return book
    from kopt.core.cost.prices import Price

    offers = {usage.offer for usage in store.capacities(window, book) if usage.price is None}
    micro = round(price * 1_000_000)
    added = [
        Price(o.model, o.provider, o.region, o.capacity, micro, "USD", 0, "--price") for o in sorted(offers, key=str)
    ]
    return replace(book, prices=(*book.prices, *added))
