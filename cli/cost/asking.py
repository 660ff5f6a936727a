"""Asks the pages instead of the meter's database: they answer with what their caller may see."""

from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.policies.cost.attribution import By

if TYPE_CHECKING:
    from kopt.policies.cost.report import CostReport


def asked_of(server: str, token_file: Path | None, by: By, label: str, since: str, limit: int) -> "CostReport":
    """Raises Refused."""
    from kopt.policies.cost.report import MOST_ROWS
    from kopt.sdk.cost import CostError, cost

    try:
        token = "" if token_file is None else token_file.read_text(encoding="utf-8")
        # A page has so many rows at most; the others are one sum.
        return cost(server, by=by.value, label=label, since=since, limit=limit or MOST_ROWS, token=token)
    except CostError as error:
        raise Refused(f"{error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{token_file}: the token cannot be read ({error})") from error
