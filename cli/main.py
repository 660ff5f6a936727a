"""The ``kopt`` command. Modules of verbs import nothing heavy; what a verb needs it imports when it runs."""

from typing import Any

import typer

from kopt.cli.errors import Edge
from kopt.cli.verbs import Verbs


class _Root(Edge):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": Verbs()})


app = typer.Typer(
    cls=_Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def kopt() -> None:
    """Predicts what GPU jobs and services will need, explains it, and acts on it.

    Start here: [bold]kopt up[/bold] starts everything on this machine and opens the pages;
    [bold]kopt demand forecast FILE[/bold] answers without a server; [bold]kopt doctor[/bold] says what is missing.

    Answers go to standard output (-o table|json|yaml|csv), progress and errors to standard error.
    Exit status: 0 done, 1 refused or failed, 2 wrong usage.
    """


def kubectl() -> None:
    """``kubectl kopt …``: kubectl finds the program by its name, kubectl-kopt."""
    app(prog_name="kubectl kopt")
