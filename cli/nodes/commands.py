"""``kopt nodes``: how nodes' GPUs are partitioned, and signed plans that change it."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Format

app = typer.Typer(
    no_args_is_help=True,
    help="What nodes score for a pod, and how their GPUs are partitioned, by signed plans that executors verify.",
)
Keys = Annotated[
    Path | None, typer.Option("--keys", metavar="DIR", help="Folder with signing.key; default: node-keys in KOPT_HOME.")
]
Plan = Annotated[Path, typer.Argument(metavar="FILE", help="What `kopt nodes plan` wrote.")]


@app.command("status")
def status(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Only this one.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List the GPUs of nodes with an executor: how they are partitioned, and how the last plan ended.

    Examples:

        kopt nodes status

        kopt nodes status gpu-7 -o json
    """
    from kopt.cli.nodes.cluster import reported
    from kopt.cli.nodes.view import show_status

    show_status(reported(kubeconfig, node), output)


@app.command("scores")
def scores(
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="Only this one.")] = "",
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=1024, help="GPUs of the pod.")] = 1,
    resource: Annotated[str, typer.Option("--resource", metavar="NAME", help="What it asks for.")] = "nvidia.com/gpu",
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where the rules of `kopt alerts rules` are evaluated.")
    ] = "",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what each node would score for a pod on GPUs, part by part, the best first.

    Parts are those of the NodeSelectionPolicy in force: history of use, health, topology, distribution, and the room
    for later pods that the pod would cost. Nodes that cannot take it come last, with the reason. What the extender
    decided about a pod, and by which weights, is in the pod's events: `kopt why POD`.

    Examples:

        kopt nodes scores

        kopt nodes scores gpu-7 --gpus 4 --prometheus http://prometheus:9090 -o json
    """
    from kopt.cli.nodes.scores import answer, read
    from kopt.cli.output import show

    result = read(kubeconfig, gpus, resource, prometheus, token_file)
    show(answer(result, gpus, resource, node, measured=bool(prometheus)), output)


@app.command("plan")
def plan(
    node: Annotated[str, typer.Argument(help="The node's name.")],
    layout: Annotated[
        list[str],
        typer.Option("--layout", metavar="GPU=LAYOUT", help="0=3g.40gb@4,2x1g.10gb, 1=off, or all=CPX/NPS4."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the plan is written.")],
    valid: Annotated[str, typer.Option("--valid", metavar="SPAN", help="It may begin for so long: 30m, 4h.")] = "1h",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Write the plan that leads from how the node is now to a layout, and show what it does before anybody signs it.

    Instances that stay are not touched. A GPU is named by its number or uuid. The plan counts for the state that the
    node is in now; drain what it changes before: an executor refuses while processes use it.

    Examples:

        kopt nodes plan gpu-7 --layout 0=3g.40gb,4x1g.10gb --out gpu-7.plan

        kopt nodes plan gpu-8 --layout all=CPX/NPS4 --valid 15m --out gpu-8.plan
    """
    from kopt.cli.nodes.cluster import reported
    from kopt.cli.nodes.plans import made, write
    from kopt.cli.nodes.view import show_plan

    (reported_node,) = reported(kubeconfig, node)
    result = made(reported_node, layout, float(seconds(valid, "--valid")))
    write(out, result)
    show_plan(result, output, f"Written to {out}. Next: kopt nodes sign {out}")


@app.command("keys")
def keys(keys: Keys = None) -> None:
    """Make the key that plans are signed with, unless it is there, and print the public one for the executors.

    Put the output into the ConfigMap that nodeExecutor.keysConfigMap names, as NAME.pub. The private key is written to
    signing.key, readable by you alone, and is printed nowhere.

    Examples:

        kopt nodes keys > alice.pub
    """
    from kopt.cli.nodes.plans import public_text

    typer.echo(public_text(keys), nl=False)


@app.command("sign")
def sign(
    file: Plan,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: FILE.signed.")] = None,
    keys: Keys = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what a plan does and sign it, as a DSSE envelope. Needs no cluster.

    Examples:

        kopt nodes sign gpu-7.plan

        kopt nodes sign gpu-7.plan --keys /media/keys --out gpu-7.signed
    """
    from kopt.cli.nodes.plans import read_plan, signed, write
    from kopt.cli.nodes.view import show_plan

    plan, target = read_plan(file), out or file.with_name(f"{file.name}.signed")
    write(target, signed(plan, keys))
    show_plan(plan, output, f"Written to {target}. Next: kopt nodes apply {target}")


@app.command("apply")
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `kopt nodes sign` wrote.")],
    wait: Annotated[str, typer.Option("--wait", metavar="SPAN", help="How long to wait for the executor.")] = "5m",
    drain: Annotated[
        bool, typer.Option("--drain", help="Cordon the node and evict its pods with GPUs before, and open it after.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Put a signed plan on its node's NodePlan and wait until the executor has applied, undone or refused it.

    Ends with status 1 unless it was applied. A plan that is refused while processes use the GPUs is tried again until
    it expires, or another one takes its place. With --drain pods are evicted as disruption budgets let them, and none
    where one of them would not be started anew elsewhere; a plan that is still refused, or that failed, leaves the node
    cordoned.

    Examples:

        kopt nodes apply gpu-7.plan.signed

        kopt nodes apply gpu-7.plan.signed --drain --wait 20m
    """
    from kopt.cli.nodes.cluster import applied
    from kopt.cli.nodes.plans import read_envelope
    from kopt.cli.nodes.view import show_status

    envelope, plan = read_envelope(file)
    say = partial(typer.echo, err=True) if drain else None
    result = applied(kubeconfig, plan.node, envelope, float(seconds(wait, "--wait")), say)
    show_status([result], output)
    if result.phase != "Applied":
        typer.echo(f"kopt: {result.phase or 'nothing yet'}: {result.message} ({result.reason})", err=True)
        raise typer.Exit(1)
