"""``kopt simulate``: traces replayed through the policies."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar
from kopt.cli.simulate.lending import lending
from kopt.cli.simulate.partitions import partitions
from kopt.cli.simulate.policy_names import read_policies
from kopt.cli.simulate.preemption import preemption
from kopt.cli.simulate.seeds import read_seeds

if TYPE_CHECKING:
    from kopt.simulator.placement.replay import Replay
    from kopt.simulator.placement.study import Expectation

MOST_LOAD = 10.0

app = typer.Typer(no_args_is_help=True, help="Replay a trace through the policies and report what they would do.")


app.command("lending")(lending)
app.command("preemption")(preemption)
app.command("partitions")(partitions)


@app.callback()
def simulate() -> None:
    """Replay a trace through the policies and report what they would do."""


@dataclass(frozen=True)
class PolicyRow:
    """One policy over all seeds; shares of the fleet's milli-GPU."""

    policy: str = column("policy")
    expects: str = column("expects pods from")
    seeds: list[int] = column("seeds", wide=True)
    allocated: list[float] = column("by seed", wide=True)
    mean: float = column("allocated", show=lambda share: f"{100 * share:.2f} %")
    lowest: float = column("lowest", show=lambda share: f"{100 * share:.2f} %")
    highest: float = column("highest", show=lambda share: f"{100 * share:.2f} %")
    refused: float = column("pods refused", show=lambda pods: f"{pods:,.0f}")


@app.command("placement")
def placement(
    nodes: Annotated[
        Path, typer.Option("--nodes", metavar="FILE", help="Nodes: sn, cpu_milli, memory_mib, gpu, model.")
    ],
    pods: Annotated[
        Path,
        typer.Option(
            "--pods", metavar="FILE", help="Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec]."
        ),
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="kopt, fgd, best-fit, …; may be given several times."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="NUMBERS", help="Orders of arrival: 42-51 or 1,2,7.")
    ] = "42-51",
    load: Annotated[float, typer.Option("--load", metavar="SHARE", help="GPUs asked for, of the fleet's.")] = 1.3,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="arrivals|trace",
            help="What a policy knows of pods beforehand: nothing, it learns from arrivals (kopt's default), or how "
            "often each kind occurs in the trace (as published fgd does).",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Also draw allocation and fragmentation over load (.png, .svg)."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default one per core.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Pods of an openb trace arrive one by one and are placed: what share of the GPUs ends up allocated?

    The protocol of the fragmentation paper (Weng et al., ATC 2023): pods shuffled once per seed, copies appended up to
    the load; nothing leaves. A policy never sees the pods to come.
    """
    from kopt.data.jobs.openb import read_nodes, read_pods
    from kopt.policies.placement.policies import POLICIES
    from kopt.simulator.placement.plots import SUFFIXES, write_plot
    from kopt.simulator.placement.study import Run, Scenario, study

    names, numbers = read_policies(policy, POLICIES), read_seeds(seeds)
    if not 0 < load <= MOST_LOAD:
        usage_error(f"a load of {load:g} is not in (0, {MOST_LOAD:g}]", "--load")
    if plot and plot.suffix.lower() not in SUFFIXES:
        usage_error(f"{plot}: a picture ends in {', '.join(SUFFIXES)}", "--plot")
    expects = _expectation(expect)
    scenario = Scenario(read_nodes(nodes), read_pods(pods), load)
    if not any(node.gpus for node in scenario.nodes):
        raise Refused(f"{nodes}: none of the nodes has a GPU")
    runs = [Run(name, seed, expects) for name in names for seed in numbers]
    with bar("replaying") as advance:
        replays = study(scenario, runs, workers, advance)
    if plot:
        write_plot(plot, replays, f"{pods.stem}: {load:.0%} load, {len(numbers)} order(s) of arrival")
    rows = [_row(name, expects, [replay for replay in replays if replay.policy == name]) for name in names]
    show(Answer("policies", rows, {"load": load}, document=_document(rows)), output)


def _row(policy: str, expects: "Expectation | None", replays: "list[Replay]") -> PolicyRow:
    from kopt.policies.placement.baselines import BASELINES
    from kopt.policies.placement.policies import LEARNS

    knows = "–" if policy in BASELINES else expects.value if expects else "arrivals" if policy in LEARNS else "trace"
    shares = [replay.allocated for replay in replays]
    return PolicyRow(
        policy,
        knows,
        [replay.seed for replay in replays],
        shares,
        sum(shares) / len(shares),
        min(shares),
        max(shares),
        sum(replay.refused for replay in replays) / len(replays),
    )


def _document(rows: list[PolicyRow]) -> Any:
    """One policy is its own document; several stand under ``policies``."""
    from kopt.cli.output import plain

    documents = [plain(row) for row in rows]
    return documents[0] if len(documents) == 1 else {"policies": documents}


def _expectation(text: str | None) -> "Expectation | None":
    from kopt.simulator.placement.study import Expectation

    if text is None:
        return None
    if text not in {expectation.value for expectation in Expectation}:
        usage_error(f"{text!r} is neither arrivals nor trace", "--expect")
    return Expectation(text)
