"""``kopt queues``: plan, explain, apply and import a tree of KaiwoQueues, and show what each queue has."""

from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.options import Kubeconfig, Output, PrometheusToken
from kopt.cli.output import Format
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, Engine

app = typer.Typer(
    no_args_is_help=True,
    help="Declare queues once, as KaiwoQueues; Kueue, KAI Scheduler or Volcano carries them out.",
)

Files = Annotated[
    list[Path], typer.Option("-f", "--file", metavar="FILE", help="KaiwoQueues and KaiwoPools; - is standard input.")
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="The queueing system of the cluster.")]
GpuResource = Annotated[str, typer.Option(metavar="NAME", help="What gpu means in pools that no KaiwoPool describes.")]


@app.command("plan")
def plan(
    file: Files,
    engine: EngineOption,
    gpu_resource: GpuResource = DEFAULT_GPU_RESOURCE,
    kubeconfig: Annotated[
        Path | None, typer.Option("--kubeconfig", metavar="FILE", help="Also look whether its Kueue counts weights.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the objects that the queues become, and what the engine cannot express. Needs no cluster.

    With -o yaml the objects can be applied as they are; what they leave out stands in comments. With --kubeconfig, a
    tree with weights is held against Kueue's own configuration, as far as you may read it.

    Examples:

        kopt queues plan -f queues.yaml --engine kueue

        kopt queues plan -f queues.yaml --engine kai -o yaml
    """
    from kopt.cli.queues.fair_sharing import fair_sharing_in
    from kopt.cli.queues.manifests import tree_of
    from kopt.cli.queues.view import compiled_of, show_plan

    tree = tree_of(file)
    compiled = compiled_of(tree, engine, gpu_resource)
    fair = None if kubeconfig is None else fair_sharing_in(kubeconfig, compiled, engine)
    show_plan(tree, engine, compiled, output, fair)


@app.command("explain")
def explain(
    file: Files,
    engine: EngineOption,
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Only this one.")] = "",
    gpu_resource: GpuResource = DEFAULT_GPU_RESOURCE,
    output: Output = Format.TABLE,
) -> None:
    """Say what the engine will do with each queue: its quota, what it borrows, how it takes its quota back.

    Examples:

        kopt queues explain -f queues.yaml --engine kai

        kopt queues explain -f queues.yaml --engine kueue --queue research
    """
    from kopt.cli.errors import unknown_name
    from kopt.cli.queues.manifests import tree_of
    from kopt.cli.queues.view import compiled_of, show_explanations

    tree = tree_of(file)
    if queue and queue not in tree.queues:
        unknown_name("queue", queue, list(tree.queues), "--queue", f"there are {', '.join(tree.queues)}")
    show_explanations(tree, engine, compiled_of(tree, engine, gpu_resource), queue, output)


@app.command("apply")
def apply(
    file: Files,
    engine: EngineOption,
    kubeconfig: Kubeconfig = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete queues that were applied before and are in no manifest now.")
    ] = False,
    gpu_resource: GpuResource = DEFAULT_GPU_RESOURCE,
    output: Output = Format.TABLE,
) -> None:
    """Show what the queues change in the cluster, then write it (server-side apply, field manager kopt-queues).

    Nothing is written while anything is refused. Fields that others own are never taken: they are named, with their
    owner. A queue with workloads in it is not deleted. `kopt off` gives all of it back.

    Examples:

        kopt queues apply -f queues.yaml --engine kueue --dry-run

        kopt queues apply -f queues.yaml --engine kai --prune
    """
    from kopt.cli.queues.apply import apply_tree
    from kopt.cli.queues.manifests import tree_of
    from kopt.cli.queues.view import compiled_of

    tree = tree_of(file)
    compiled = compiled_of(tree, engine, gpu_resource)
    apply_tree(tree, engine, compiled, kubeconfig, output, dry_run=dry_run, prune=prune)


@app.command("import")
def import_(
    engine: EngineOption,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="Their manifests, or a KaiwoQueueConfig; default: the cluster."
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.YAML,
) -> None:
    """Print the queues that a cluster has as KaiwoQueues that mean the same: applying them changes nothing.

    Reads ClusterQueues, Cohorts, ResourceFlavors and Kaiwo's KaiwoQueueConfig (kueue), or KAI's Queues (kai). What is
    left as it is, and whatever applying them would change after all, is listed on stderr.

    Examples:

        kopt queues import --engine kueue > queues.yaml

        kopt queues import --engine kueue -f kaiwo-queue-config.yaml
    """
    from kopt.cli.queues.importing import import_queues

    import_queues(engine, file or [], kubeconfig, output)


@app.command("advise")
def advise(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where `kopt controller queues` is scraped.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How much demand to go by.")] = "28d",
    token_file: PrometheusToken = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the advised quotas into the KaiwoQueues.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Give back the quotas from before all advice.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Advise quotas of GPUs by what queues used and waited for: with an interval, and why. Writes only with --apply.

    What the queues of one parent have together in a pool is divided so that least demand is above a quota, where it is
    borrowed or waits. None gets less than its guarantee, or more than its limit. Kueue only.

    Examples:

        kopt queues advise --prometheus http://prometheus:9090

        kopt queues advise --prometheus http://prometheus:9090 --since 8w --apply

        kopt queues advise --undo
    """
    from kopt.cli.errors import usage_error
    from kopt.cli.options import seconds
    from kopt.cli.queues.advise import advise_quotas, undo_advice

    if undo:
        if apply:
            usage_error("advice is either written or undone", "--undo")
        undo_advice(kubeconfig, output)
        return
    if not prometheus:
        usage_error("name the Prometheus that scrapes `kopt controller queues`", "--prometheus")
    advise_quotas(prometheus, seconds(since, "--since"), token_file, kubeconfig, output, apply=apply)


@app.command("tree")
def tree(kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """Show the queues of Kueue as a tree: quota, use, borrowing, and what waits. Nothing is written.

    Examples:

        kopt queues tree

        kopt queues tree -o json
    """
    from kopt.cli.queues.tree import show_tree

    show_tree(kubeconfig, output)


@app.command("show")
def show_queue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A queue, or a department.")],
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show one queue of Kueue with the departments above it and the queues below it.

    Examples:

        kopt queues show research
    """
    from kopt.cli.queues.tree import show_tree

    show_tree(kubeconfig, output, name)


@app.command("shares")
def shares(
    engine: EngineOption = Engine.KUEUE,
    queue: Annotated[str, typer.Option("--queue", metavar="NAME", help="Only this one.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what each queue of a cluster uses, and what it ideally had by dominant resource fairness.

    The ideal gives each queue its quota as far as it demands it, and shares out the rest by weight over CPU, memory and
    GPUs. The share error is the part of the capacity that a queue uses above that, or lacks. Nothing is written.

    Examples:

        kopt queues shares

        kopt queues shares --engine kai -o json
    """
    from kopt.cli.queues.shares import show_shares

    show_shares(engine, queue, kubeconfig, output)
