"""Asks the pages instead of the meter's database: they answer with what their caller may see."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.policies.cost.attribution import By

if TYPE_CHECKING:
    from kopt.policies.cost.report import CostEvent, CostReport
    from kopt.policies.cost.run import RunCost

ServerOption = Annotated[
    str, typer.Option("--server", metavar="URL", help="Ask pages, which say what you may see, and not a database.")
]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A bearer token for the server, or for Prometheus."),
]


def refuse_beside_server(**options: object) -> None:
    """What pages know themselves."""
    for name, value in options.items():
        if value is not None:
            usage_error("not beside --server, whose price book and measurements count", f"--{name}")


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


def run_from_pages(name: str, server: str, token_file: Path | None, since: str, run: str) -> "RunCost":
    """Raises Refused."""
    from kopt.sdk.cost import run_cost

    with _refusing():
        return run_cost(name, server, since=since, run=run, token=_token(token_file))


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
