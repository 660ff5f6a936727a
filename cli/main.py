"""The ``kopt`` command. Modules of verbs import nothing heavy; what a verb needs it imports when it runs."""

import typer

from kopt.cli import demand, doctor, models, train, up
from kopt.cli.edge import Edge

app = typer.Typer(
    cls=Edge,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Predicts what GPU jobs and services will need, explains it, and acts on it.

    Start here: [bold]kopt up[/bold] starts everything on this machine and opens the pages;
    [bold]kopt demand forecast FILE[/bold] answers without a server; [bold]kopt doctor[/bold] says what is missing.

    Answers go to standard output (-o table|json|yaml|csv), progress and errors to standard error.
    Exit status: 0 done, 1 refused or failed, 2 wrong usage.""",
)

app.command("up")(up.up)
app.command("status")(up.status)
app.command("down")(up.down)
app.command("version")(doctor.version)
app.command("doctor")(doctor.doctor)
app.command("train")(train.train)
app.add_typer(models.app, name="models")
app.add_typer(demand.app, name="demand")
