"""``kopt agent …``: what runs on nodes and inside pods."""

from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.cluster.agents import logtail as agent_logtail
from kopt.cli.cluster.agents import save_hook as agent_save
from kopt.cli.cluster.agents import telemetry as agent_telemetry
from kopt.cli.cluster.agents import topology as agent_topology
from kopt.cli.nodes.executor import node_executor

app = typer.Typer(no_args_is_help=True, help="What runs on nodes and inside pods.")
app.add_typer(agent_logtail.app, name="logtail")
app.command("telemetry")(agent_telemetry.telemetry)
app.command("topology")(agent_topology.topology)
app.command("node-executor")(node_executor)
app.command("save-hook")(agent_save.save_hook)


@app.command("install")
def install(
    folder: Annotated[Path, typer.Argument(help="A folder that the profiled container mounts as well.")],
    runtime: Annotated[
        Path | None,
        typer.Option(help="A relocatable Python to lay beside it, for images without one.", envvar="KOPT_RUNTIME"),
    ] = None,
) -> None:
    """Write the dry-run profiler into a folder, as an init container of a profiling Job does.

    FOLDER/profile then starts in any container that has a Python 3.11 or newer (or finds the one of --runtime).

    Examples:

        kopt agent install /kopt
    """
    from kopt.agents.profiler.bundle import install as write

    typer.echo(write(folder, runtime), err=True)
