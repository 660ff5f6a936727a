"""The ``kopt`` command. Modules of verbs import nothing heavy; what a verb needs it imports when it runs."""

import typer

from kopt.cli.alerts import commands as alerts
from kopt.cli.bandwidth import commands as bandwidth
from kopt.cli.cluster import (
    audit,
    classes,
    controller,
    efficiency,
    evictions,
    extender,
    features,
    fractions,
    gpus,
    hardware,
    idle,
    off,
    partitions,
    webhook,
    why,
)
from kopt.cli.cluster.agents import commands as agent
from kopt.cli.cluster.queueing import capacity, queue, replicas, reservations
from kopt.cli.cost import commands as cost
from kopt.cli.crds import commands as crds
from kopt.cli.dashboards import commands as dashboards
from kopt.cli.demand import commands as demand
from kopt.cli.errors import Edge
from kopt.cli.health import commands as health
from kopt.cli.local import doctor, up
from kopt.cli.logs import commands as logs
from kopt.cli.mcp import commands as mcp
from kopt.cli.nodes import commands as nodes
from kopt.cli.parallelism import commands as parallelism
from kopt.cli.policies import commands as policies
from kopt.cli.queues import commands as queues
from kopt.cli.reasons import commands as reasons
from kopt.cli.rightsize import commands as rightsize
from kopt.cli.runtime import commands as runtime
from kopt.cli.script_arguments import ScriptCommand
from kopt.cli.simulate import commands as simulate
from kopt.cli.sizing import estimate, profile, recommend
from kopt.cli.sizing import explain as sizes
from kopt.cli.staging import commands as stage
from kopt.cli.topology import commands as topology
from kopt.cli.training import mlflow, models, train
from kopt.cli.utilisation import commands as utilisation

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
app.command("mlflow")(mlflow.mlflow)
app.command("off")(off.off)
app.command("version")(doctor.version)
app.command("doctor")(doctor.doctor)
app.command("train")(train.train)
app.add_typer(models.app, name="models")
app.add_typer(demand.app, name="demand")
app.add_typer(logs.app, name="logs")
app.command("estimate", cls=ScriptCommand)(estimate.estimate)
app.command("recommend", cls=ScriptCommand)(recommend.recommend)
app.command("explain")(sizes.explain)
app.command("diff")(sizes.diff)
app.command("apply")(sizes.apply)
app.command("profile")(profile.profile)
app.add_typer(topology.app, name="topology")
app.add_typer(bandwidth.app, name="bandwidth")
app.add_typer(runtime.app, name="runtime")
app.command("parallelism")(parallelism.parallelism)
app.add_typer(simulate.app, name="simulate")
app.command("stage")(stage.stage)
app.add_typer(features.app, name="features")
app.add_typer(audit.app, name="audit")
app.command("evictions")(evictions.evictions)
app.command("why")(why.why)
app.command("mcp")(mcp.mcp)
app.command("replicas")(replicas.replicas)
app.add_typer(capacity.app, name="capacity")
app.command("reasons")(reasons.reasons)
app.add_typer(alerts.app, name="alerts")
app.add_typer(dashboards.app, name="dashboards")
app.command("queue")(queue.queue)
app.command("gpus")(gpus.gpus)
app.command("hardware")(hardware.hardware)
app.command("idle")(idle.idle)
app.command("efficiency")(efficiency.efficiency)
app.add_typer(utilisation.app, name="utilisation")
app.add_typer(fractions.app, name="fractions")
app.add_typer(partitions.app, name="partitions")
app.add_typer(rightsize.app, name="rightsize")
app.add_typer(health.app, name="health")
app.add_typer(reservations.app, name="reservations")
app.command("classes")(classes.classes)
app.add_typer(cost.app, name="cost")
app.add_typer(queues.app, name="queues")
app.add_typer(policies.app, name="policies")
app.add_typer(nodes.app, name="nodes")
app.add_typer(crds.app, name="crds")
app.command("webhook")(webhook.webhook)
app.command("extender")(extender.extender)
app.add_typer(agent.app, name="agent")
app.add_typer(controller.app, name="controller")


def kubectl() -> None:
    """``kubectl kopt …``: kubectl finds the program by its name, kubectl-kopt."""
    app(prog_name="kubectl kopt")
