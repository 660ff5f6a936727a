"""``--context`` on every command that has ``--kubeconfig``, as kubectl has it."""

import os
from typing import Annotated, Any

import typer
from typer.main import get_command

from kopt.core.settings import KUBE_CONTEXT


def offer_context(command: Any) -> None:
    """Adds the option to a command, and to all commands of a group, once."""
    for inner in getattr(command, "commands", {}).values():
        offer_context(inner)
    names = [param.name for param in command.params]
    if "kubeconfig" in names and "context" not in names:
        command.params.insert(names.index("kubeconfig") + 1, _option())


def _use(context: str | None) -> None:
    """For this process and those that it starts: as KUBECONFIG, it is read where a cluster is looked for."""
    if context is not None:
        os.environ[KUBE_CONTEXT] = context


_Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="The context in the kubeconfig; else its current one.", callback=_use
    ),
]


def _option() -> Any:
    """What typer makes of the declaration above; its value goes to no function."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def holder(context: _Context = None) -> None:
        """Never called."""

    (option,) = (param for param in get_command(app).params if param.name == "context")
    option.expose_value = False
    return option
