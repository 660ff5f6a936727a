"""Asks the pages instead of the meter's database: they answer with what their caller may see."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.policies.cost.attribution import By

if TYPE_CHECKING:
    from kopt.policies.cost.report import CostEvent, CostReport


def costs_from_endpoint(
    server: str, token_file: Path | None, by: By, label: str, since: str, limit: int
) -> "CostReport":
    """Raises Refused."""
    from kopt.policies.cost.report import MOST_ROWS
    from kopt.sdk.cost import cost

    with _refusing():
        # A page has so many rows at most; the others are one sum.
        token = _token(token_file)
        return cost(server, by=by.value, label=label, since=since, limit=limit or MOST_ROWS, token=token)


def events_from_endpoint(
    row: str, server: str, token_file: Path | None, by: By, label: str, since: str
) -> "tuple[list[CostEvent], int]":
    """The events behind a row, and how many there are in all. Raises Refused."""
    from kopt.sdk.cost import cost_events

    with _refusing():
        return cost_events(row, server, by=by.value, label=label, since=since, token=_token(token_file))


@contextmanager
def _refusing() -> Iterator[None]:
    from kopt.sdk.cost import CostError

    try:
        yield
    except CostError as error:
        raise Refused(f"{error}") from error


def _token(path: Path | None) -> str:
    try:
        return "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: the token cannot be read ({error})") from error
