"""``kopt parallelism``: how to split a training job over GPUs, and over how many, without running it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, gpus
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import print_status, step
from kopt.core.units import format_bytes
from kopt.core.untrusted import UnreadableError, decode_mapping
from kopt.core.workload.split import Framework, Matmul, ScalingCurve, SplitAdvice, SplitEstimate, in_words
from kopt.serving.base.environment import load_settings

_MAX_COUNT = 1 << 17
_BILLION = 1e9

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A language model by name (Llama-3-70B), or its config.json.")
]
GpuModel = Annotated[str, typer.Option("--gpu", metavar="MODEL", help="The GPU: H100, A100-80GB.", autocompletion=gpus)]
Gpus = Annotated[
    str, typer.Option("--gpus", metavar="N[,N...]", help="How many GPUs; several numbers give the scaling curve.")
]
GpusPerNode = Annotated[
    int | None, typer.Option("--gpus-per-node", min=1, max=1024, help="8, or 4 on trays of a GB200 rack, if not given.")
]
Tokens = Annotated[int, typer.Option("--sequence", metavar="TOKENS", min=1, help="Tokens of a sequence.")]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="The global batch, in sequences.")]
Nics = Annotated[str, typer.Option("--nics", metavar="TEXT", help="Network cards of a node: '8x NDR400 IB'.")]
Price = Annotated[float | None, typer.Option("--price", min=0.0, help="Money for a GPU and hour.")]
Top = Annotated[int, typer.Option("--top", min=1, max=20, help="How many splits to answer.")]
Fit = Annotated[float, typer.Option("--fit", min=0.01, max=0.999, help="The least probability to fit.")]
Measured = Annotated[
    list[str] | None,
    typer.Option("--measured", metavar="GPUS=SECONDS", help="A step's time in your own runs; may be repeated."),
]
Flags = Annotated[
    Framework | None,
    typer.Option("--flags", help="Print only the best split's settings in this framework's words, for $(...)."),
]
Threshold = Annotated[
    float, typer.Option("--threshold", min=0.01, max=1.0, help="The least marginal efficiency that is called useful.")
]


@dataclass(frozen=True)
class SplitRow:
    """One split; the flags are printed below and stand in documents."""

    split: str = column("split")
    fit_probability: float = column("fits", show=lambda value: f"{value:.1%}")
    memory_bytes: float = column("memory", show=lambda value: format_bytes(int(value)))
    step_seconds: float = column("step (s)", show=lambda value: f"{value:.3g}")
    step_low_seconds: float = column("low", show=lambda value: f"{value:.3g}", drop=2)
    step_high_seconds: float = column("high", show=lambda value: f"{value:.3g}", drop=2)
    flops_share: float = column("MFU", show=lambda value: f"{value:.0%}")
    gpu_hours_per_billion_tokens: float = column("GPU-h per 1e9 tokens", show=lambda value: f"{value:.3g}", drop=1)
    money_per_billion_tokens: float | None = column("cost", show=lambda value: f"{value:.4g}")


@dataclass(frozen=True)
class CurveRow:
    gpus: int = column("GPUs")
    split: str = column("best split")
    step_seconds: float = column("step (s)", show=lambda value: f"{value:.3g}")
    tokens_per_second: float = column("tokens/s", show=lambda value: f"{value:,.0f}")
    speedup: float = column("speed-up", show=lambda value: f"{value:.2f}")
    marginal_efficiency: float = column("marginal", show=lambda value: f"{value:.0%}")
    gpu_hours_per_billion_tokens: float = column("GPU-h per 1e9 tokens", show=lambda value: f"{value:.3g}")
    useful: bool = column("useful")


def parallelism(
    model: ModelName,
    gpu: GpuModel,
    gpus: Gpus,
    sequence: Tokens,
    batch: Batch,
    gpus_per_node: GpusPerNode = None,
    framework: Annotated[
        Framework, typer.Option("--framework", help="Whose splits and memory are meant.")
    ] = Framework.MEGATRON,
    matmul: Annotated[Matmul, typer.Option("--matmul", help="The format of layers' matrix products.")] = Matmul.BF16,
    nics: Nics = "",
    price: Price = None,
    top: Top = 3,
    fit: Fit = 0.95,
    threshold: Threshold = 0.7,
    measured: Measured = None,
    flags: Flags = None,
    output: Output = Format.TABLE,
) -> None:
    """How to split the training of a language model over GPUs: data, tensor, pipeline, context and expert parallel
    sizes, sharding, recomputation and micro-batch.

    Memory is that of `kopt estimate`, the step's time a roofline with measured efficiencies and the collectives of
    `kopt bandwidth`. Splits that are likely to fit are ordered by time over that probability; answers come with flags
    for Megatron-LM, NeMo, torchtitan and DeepSpeed. Several numbers of GPUs give the scaling curve instead, and up to
    how many each is worth it; with --measured it follows your own runs. Status 1 when nothing fits.

    Examples:

        kopt parallelism Llama-3-70B --gpu h100 --gpus 64 --sequence 8192 --batch 256

        kopt parallelism Llama-3-8B --gpu a100-80gb --gpus 16 --sequence 4096 --batch 256 --framework deepspeed

        kopt parallelism Llama-3-70B --gpu h100 --gpus 32,64,128,256 --sequence 8192 --batch 512 --price 2.5

        kopt parallelism Llama-3-70B --gpu h100 --gpus 64,128,256 --sequence 8192 --batch 512 --measured 64=83.5

        torchrun --nproc-per-node 8 pretrain_gpt.py $(kopt parallelism Llama-3-8B --gpu h100 --gpus 8 --sequence 8192
        --batch 128 --flags megatron)

        kopt parallelism config.json --gpu h100 --gpus 8 --sequence 4096 --batch 128 -o json
    """
    from kopt.sdk import parallelism as ask

    counts = counts_of(gpus)
    if flags is not None and len(counts) > 1:
        usage_error("settings are of one number of GPUs; give --gpus one", "--flags")
    named = _model_of(model)
    question: dict[str, Any] = {
        "gpu": gpu,
        "sequence": sequence,
        "global_batch": batch,
        "gpus_per_node": gpus_per_node,
        "framework": framework.value,
        "matmul": matmul.value,
        "nics": nics,
        "price": price,
        "likely": fit,
        "measured": dict(measured_of(text) for text in measured or ()),
        "settings": load_settings(),
    }
    if len(counts) > 1:
        with step("comparing splits"):
            curve = ask.scaling(named, gpus=counts, threshold=threshold, **question)
        show(_curve_answer(curve), output)
        empty = not curve.points
    else:
        with step("comparing splits"):
            advice = ask.parallelism(named, gpus=counts[0], count=top, **question)
        if flags is None:
            show(_answer(advice), output)
        elif advice.splits:
            typer.echo(_settings(advice.splits[0], flags))
        else:
            raise Refused(advice.reasons[0].message)
        empty = not advice.splits
    if empty:
        raise typer.Exit(1)


def counts_of(text: str) -> list[int]:
    """``8,16,32`` as numbers. Wrong usage ends the process with status 2."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 and 0 < int(part) <= _MAX_COUNT for part in parts):
        usage_error(f"{text[:80]!r} are no numbers of GPUs; write 64, or 8,16,32", "--gpus")
    return sorted({int(part) for part in parts})


def measured_of(text: str) -> tuple[int, float]:
    """``64=83.5``: GPUs, and seconds of a step. Wrong usage ends the process with status 2."""
    count, _, seconds = text.partition("=")
    try:
        return counts_of(count)[0], float(seconds)
    except ValueError:
        usage_error(f"{text[:80]!r} is no step's time such as 64=83.5", "--measured")


def _model_of(name: str) -> str | Mapping[str, Any]:
    """A name, or what a config.json holds. Raises Refused for a file that is none."""
    if not name.endswith(".json"):
        return name
    from kopt.cli.demand.inputs import readable

    path = readable(Path(name))
    try:
        return decode_mapping(path.read_text(encoding="utf-8", errors="replace"))
    except UnreadableError as error:
        raise Refused(f"{path}: no model's config.json ({error})") from error


def _row(estimate: SplitEstimate) -> SplitRow:
    return SplitRow(
        in_words(estimate.split),
        estimate.fit_probability,
        estimate.memory_bytes,
        estimate.step_seconds,
        estimate.step_low_seconds,
        estimate.step_high_seconds,
        estimate.flops_share,
        estimate.gpu_hours_per_billion_tokens,
        estimate.money_per_billion_tokens,
    )


def _answer(advice: SplitAdvice) -> Answer:
    job = advice.job
    rows = [_row(estimate) for estimate in advice.splits]
    remarks = [reason.message for reason in advice.reasons]
    if advice.splits:
        frameworks = ", ".join(each.framework.value for each in advice.splits[0].settings)
        remarks.append(f"--flags prints the first split's settings for {frameworks}; -o json holds those of all.")
    header = {
        "model": f"{job.model.name}, {job.model.parameters() / _BILLION:.3g} billion weights",
        "on": f"{job.gpus} × {job.gpu}, {job.gpus_per_node} in a node",
        "step": f"{job.global_batch} sequences of {job.sequence:,} tokens",
    }
    return Answer("splits", rows, header, remarks=remarks, empty="nothing fits", document=advice.to_dict())


def _settings(first: SplitEstimate, framework: Framework) -> str:
    """The split in the framework's words. Raises Refused where it has none for it."""
    for each in first.settings:
        if each.framework is framework:
            if each.note:
                print_status(f"kopt: {each.note}")
            return each.text
    raise Refused(f"{framework.value} cannot run {in_words(first.split)}; ask with --framework {framework.value}")


def _curve_answer(curve: ScalingCurve) -> Answer:
    job = curve.job
    rows: Sequence[CurveRow] = [
        CurveRow(
            point.gpus,
            in_words(point.best.split),
            point.best.step_seconds,
            point.best.tokens_per_second,
            point.speedup,
            point.marginal_efficiency,
            point.best.gpu_hours_per_billion_tokens,
            curve.useful_gpus is not None and point.gpus <= curve.useful_gpus,
        )
        for point in curve.points
    ]
    header = {
        "model": f"{job.model.name}, {job.model.parameters() / _BILLION:.3g} billion weights",
        "on": f"{job.gpu}, {job.gpus_per_node} in a node",
        "step": f"{job.global_batch} sequences of {job.sequence:,} tokens",
        "useful from a marginal efficiency of": f"{curve.threshold:.0%}",
    }
    remarks = [reason.message for reason in curve.reasons]
    return Answer("points", rows, header, remarks=remarks, empty="nothing fits", document=curve.to_dict())
