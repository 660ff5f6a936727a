"""``kopt simulate partitions``: requests for MIG partitions come and go; how many find room?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, plain, show
from kopt.cli.progress import bar
from kopt.cli.simulate.policy_names import read_policies
from kopt.cli.simulate.seeds import read_seeds

if TYPE_CHECKING:
    from kopt.simulator.partitions import PartitionRun

_MOST_GPUS, _MOST_LOAD = 10_000, 10.0


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


@dataclass(frozen=True)
class PartitionRow:
    """One policy; shares of requests and of compute slices, by seed."""

    policy: str = column("policy")
    seeds: list[int] = column("seeds", wide=True)
    accepted: list[float] = column("accepted by seed", wide=True)
    slices_used: list[float] = column("slices used by seed", wide=True)
    moves_per_request: list[float] = column("moves per request by seed", wide=True)
    mean: dict[str, float] = column("mean", wide=True)
    mean_accepted: float = column("accepted", show=_percent)
    lowest: float = column("lowest", show=_percent)
    mean_slices_used: float = column("slices used", show=_percent)
    mean_moves: float = column("moves per request", show=lambda moves: f"{moves:.3f}")


def partitions(
    model: Annotated[str, typer.Option("--model", metavar="GPU", help="The GPU model: h100-80gb, a30, b200, …")],
    mix: Annotated[
        str, typer.Option("--mix", metavar="PROFILE=SHARE,…", help="Shares of requests: 1g.10gb=.5,3g.40gb=.5.")
    ],
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=_MOST_GPUS, help="GPUs of the pool.")] = 50,
    load: Annotated[
        float, typer.Option("--load", metavar="SHARE", help="Compute slices asked for at a time, of all.")
    ] = 1.0,
    seeds: Annotated[str, typer.Option("--seeds", metavar="NUMBERS", help="Draws: 42-51 or 1,2,7.")] = "42-51",
    moves: Annotated[
        float,
        typer.Option(
            "--moves", min=0, max=10, metavar="NUMBER", help="Partitions that may be moved, per request; 0: none."
        ),
    ] = 0.0,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="kopt, first-fit, best-fit, …, or all; several times."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=100, max=1_000_000, help="Requests of a draw.")] = 20_000,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default one per core.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Requests for MIG partitions come and go: how many find room, and how much of the GPUs is used?

    Arrivals are Poisson, stays exponential, and nothing waits. What a partition holds is not moved without --moves; no
    policy refuses a request for which there is room, and none knows the mix before requests came.

    Examples:

        kopt simulate partitions --model h100-80gb --mix 1g.10gb=.5,3g.40gb=.3,7g.80gb=.2 --policy all

        kopt simulate partitions --model h100-80gb --mix 1g.10gb=.5,3g.40gb=.3,7g.80gb=.2 --moves .05 -o json
    """
    from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
    from kopt.core.hardware.mig import MigError, mig_geometry
    from kopt.policies.partitions.placement import POLICIES
    from kopt.simulator.partitions import PartitionStream, replay_all

    if not 0 < load <= _MOST_LOAD:
        usage_error(f"a load of {load:g} is not in (0, {_MOST_LOAD:g}]", "--load")
    names, numbers = read_policies(policy, POLICIES), read_seeds(seeds)
    try:
        stream = PartitionStream(mig_geometry(find_gpu(model)), gpus, _mix(mix), load, moves, requests)
    except (UnknownGpuError, MigError) as error:
        raise Refused(str(error)) from error
    except ValueError as error:
        usage_error(str(error), "--mix")
    with bar("replaying") as advance:
        runs = replay_all(stream, names, numbers, workers, advance)
    rows = [_row(name, [run for run in runs if run.policy == name]) for name in names]
    documents = [plain(row) for row in rows]
    document: Any = documents[0] if len(documents) == 1 else {"policies": documents}
    show(Answer("policies", rows, {"model": stream.geometry.model, "load": load}, document=document), output)


def _row(policy: str, runs: "list[PartitionRun]") -> PartitionRow:
    accepted, used = [run.accepted for run in runs], [run.slices_used for run in runs]
    moves = [run.moves_per_request for run in runs]
    means = [sum(values) / len(values) for values in (accepted, used, moves)]
    return PartitionRow(
        policy,
        [run.seed for run in runs],
        accepted,
        used,
        moves,
        dict(zip(("accepted", "slices_used", "moves_per_request"), means, strict=True)),
        means[0],
        min(accepted),
        *means[1:],
    )


def _mix(text: str) -> dict[str, float]:
    result: dict[str, float] = {}
    for part in text.split(","):
        name, sign, share = part.strip().partition("=")
        try:
            if not sign or name in result:
                raise ValueError(name)
            result[name] = float(share)
        except ValueError:
            usage_error(f"{part!r} is no share; write each profile once, like 1g.10gb=.5,3g.40gb=.5", "--mix")
    return result
