"""The option that says whether a workload's own annotation may ask for less than its namespace's."""

from typing import Annotated

import typer

from kopt.cli.errors import usage_error
from kopt.core.decision import may_lower

WorkloadMode = Annotated[
    str,
    typer.Option(
        "--workload-mode",
        help="Whether kaiwo.ai/mode of a workload may ask for less than its namespace or the policy: Any, NotLower; "
        "empty: only where these do not say enforce.",
    ),
]


def may_lower_of(text: str) -> bool | None:
    """As settings take it; a wrong value ends the command with status 2."""
    try:
        return may_lower(text)
    except ValueError as error:
        usage_error(str(error), "--workload-mode")
