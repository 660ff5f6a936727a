"""``kopt recommend``: what workloads ask for, what they need, and the patch that says so."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.endpoint import endpoint, sizing_question
from kopt.cli.errors import usage_error
from kopt.cli.options import Kubeconfig, PatchFormat, seconds
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.parallelism.commands import measured_of
from kopt.cli.progress import Steps, step
from kopt.cli.script_arguments import Arguments, Gpu, Python, Timeout, command_of
from kopt.cli.sizing import measured
from kopt.cli.sizing import running_workloads as running
from kopt.cli.sizing.running_workloads import Namespace, Sized
from kopt.core.units import format_bytes, format_gpus, format_span
from kopt.core.workload.executor import IF_SHARED
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.serving.client.blocking import PredictionClient
    from kopt.serving.contract.size_advice import SizeAdvice

PatchOutput = Annotated[PatchFormat, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)]
Prometheus = Annotated[
    str,
    typer.Option(
        "--prometheus", metavar="URL", help="With --running: where dcgm-exporter or AMD's exporter is scraped."
    ),
]
Since = Annotated[str, typer.Option("--since", metavar="SPAN", help="With --prometheus: how far back.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="With --prometheus: a bearer token for it.")
]
OwnSteps = Annotated[
    list[str] | None,
    typer.Option("--measured", metavar="GPUS=SECONDS", help="With WORKLOAD: a step's time of its own runs."),
]
Running = Annotated[bool, typer.Option("--running", help="The GPU workloads that run in a cluster now.")]


@dataclass(frozen=True)
class AdviceRow:
    """One workload: asked, needed with its interval, advised, saved."""

    name: str = column("workload")
    gpu: str = column("GPU")
    asked_milli_gpu: int | None = column("asked", show=lambda milli: f"{milli / 1000:g} GPU")
    peak_bytes: int | None = column("needs", show=format_bytes)
    low_bytes: int | None = column("from", show=format_bytes, drop=1)
    high_bytes: int | None = column("to", show=format_bytes, drop=2)
    advice: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    useful_gpus: int | None = column("GPUs useful", drop=4)
    confidence: float = column("confidence", show=lambda share: f"{share:.0%}", drop=3)
    method: str = column("by", wide=True)
    why: str = column("why", wide=True)


@dataclass(frozen=True)
class _Needs:
    """Pods of one kind of a workload that runs, what each asks for, and what its code needs."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    pods: int = column("pods")
    gpu: str = column("GPU")
    asked_milli_gpu: int | None = column("asked each", show=lambda milli: f"{format_gpus(milli)} GPU")
    peak_bytes: int | None = column("needs", show=format_bytes)
    low_bytes: int | None = column("from", show=format_bytes, drop=1)
    high_bytes: int | None = column("to", show=format_bytes, drop=2)


@dataclass(frozen=True)
class _Measured:
    """What they used: the highest peak, the time with readings in seconds, and the mean share of it with kernels."""

    measured_bytes: int | None = column("measured", show=format_bytes)
    measured_s: float | None = column("over", show=format_span, drop=4)
    activity: float | None = column("active", show=lambda share: f"{share:.0%}", drop=1)


@dataclass(frozen=True)
class _Advised:
    """The advice; ``saved_milli_gpu`` is what all of them together give back."""

    advice: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    confidence: float | None = column("confidence", show=lambda share: f"{share:.0%}", drop=3)
    method: str = column("by", wide=True)
    why: str = column("why", wide=True)


# Of several bases the last one's columns come first.
@dataclass(frozen=True)
class RunningRow(_Advised, _Needs):
    """Pods of one kind of a workload that runs."""


@dataclass(frozen=True)
class MeasuredRow(_Advised, _Measured, _Needs):
    """The same, with what they used beside what they need."""


def recommend(
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="[WORKLOAD]",
            help="A script, a shell line in quotes or a pod manifest to run on a fake device here; none: all known.",
        ),
    ] = None,
    arguments: Arguments = None,
    gpu: Gpu = None,
    timeout: Timeout = 60,
    python: Python = None,
    cluster: Running = False,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    prometheus: Prometheus = "",
    since: Since = "7d",
    token_file: TokenFile = None,
    own_steps: OwnSteps = None,
    output: PatchOutput = PatchFormat.TABLE,
) -> None:
    """What workloads ask for, what they need, and the patch that says so.

    Without WORKLOAD: all job types that the endpoint (KOPT_URL) was asked about. With one: the script runs on a fake
    device here, and what it said is sent to the endpoint, which remembers it for the job type. Where a trainer's
    arguments say how it scales, it also tells how many GPUs are useful; --measured corrects that. With --running: the
    workloads of a cluster; `kopt explain`, `kopt diff` and `kopt apply --dry-run` go on from there. With --prometheus
    too, the most that their pods used of a GPU counts beside the estimate: over a day or longer it takes its place.

    Examples:

        kopt recommend

        kopt recommend job.yaml --python ~/envs/train/bin/python -o patch

        kopt recommend --running -n research

        kopt recommend --running --prometheus http://prometheus:9090 --since 14d
    """
    if prometheus and not cluster:
        usage_error("--prometheus goes with --running; `kopt profile --prometheus` is about one pod", "--prometheus")
    if cluster:
        if workload is not None:
            usage_error("--running is about the whole cluster; `kopt explain KIND/NAME` is about one", "--running")
        question = measured.Question(prometheus, seconds(since, "--since"), token_file) if prometheus else None
        _running(kubeconfig, namespace, output, question)
        return
    settings = load_settings()
    with endpoint(settings) as client:
        if workload is None:
            size_advices: Sequence[SizeAdvice] = client.sizes()
        else:
            steps = {str(gpus): seconds_ for gpus, seconds_ in (measured_of(text) for text in own_steps or ())}
            name = _submit(client, command_of(workload, arguments or []), gpu, timeout, python, steps)
            size_advices = [size_advice for size_advice in client.sizes() if size_advice.name == name][:1]
    if output is PatchFormat.PATCH:
        typer.echo(_patches(size_advices), nl=False)
    else:
        show(_answer(size_advices), Format(output.value))


def _running(kubeconfig: Any, namespace: str, output: PatchFormat, question: "measured.Question | None") -> None:
    measurements = None
    if question is not None:
        with step("reading what pods used"):
            measurements = measured.read(question, namespace)
    with step("asking what workloads need"):
        sizeds = running.sized(load_settings(), None, kubeconfig, namespace, measurements)
    if output is PatchFormat.PATCH:
        typer.echo(running.patches(sizeds), nl=False)
        return
    from kopt.serving.contract.size_advice import saved_together

    saved = saved_together(sized.saved_milli_gpu for sized in sizeds)
    remarks = [f"Together they could give back {saved / 1000:g} GPUs: kopt diff"] if saved else []
    remarks += [f"{sized.pods.label}: {sized.why}" for sized in sizeds if sized.advice is None]
    remarks += [remark for sized in sizeds for remark in _measured_remarks(sized)]
    remarks += [hint for hint in [measured.HINT if measurements is None else measurements.hint] if hint and sizeds]
    show(
        Answer(
            "recommendations",
            [_running_row(sized) for sized in sizeds],
            remarks=remarks,
            document={"recommendations": [running.document(sized) for sized in sizeds]},
            empty="no workload that asks for GPUs runs here",
        ),
        Format(output.value),
    )


def _measured_remarks(sized: Sized) -> list[str]:
    """What is to be known of the readings, and how they counted."""
    reasons = sized.advice.reasons if sized.advice is not None and sized.measured is not None else ()
    why = [f"{sized.pods.label}: {reason.message}" for reason in reasons if reason.code.startswith("MEASURED")]
    return [*sized.remarks, *why]


def _running_row(sized: Sized) -> RunningRow | MeasuredRow:
    pods, advice, use = sized.pods, sized.advice, sized.measured
    row = RunningRow(
        pods.workload.namespace,
        pods.label,
        pods.pods.pods,
        pods.gpu if advice is None else advice.gpu,
        pods.pods.gpus if advice is None else advice.requested_milli_gpu,
        *sized.estimated_bytes,
        "" if advice is None else advice.advised,
        sized.saved_milli_gpu,
        None if advice is None else advice.confidence,
        "" if advice is None else advice.method,
        sized.why if advice is None else _why(advice),
    )
    if not sized.window_s:
        return row
    if use is None:
        return MeasuredRow(**vars(row), measured_bytes=None, measured_s=None, activity=None)
    return MeasuredRow(**vars(row), measured_bytes=use.peak_bytes, measured_s=use.measured_s, activity=use.activity)


def _why(advice: "SizeAdvice") -> str:
    return advice.why_no_advice or " ".join(reason.message for reason in advice.reasons[:3])


def _submit(
    client: "PredictionClient",
    command: Any,
    gpu: str | None,
    timeout_s: float,
    python: str | None,
    own_steps: Mapping[str, float],
) -> str:
    """Run the workload on a fake device and send what it said; returns the name that its advice has."""
    from kopt.models.sizing.estimate import EstimateOptions, read_code
    from kopt.models.sizing.trace_summary import summary

    question = sizing_question(command, gpu)
    with Steps() as steps, steps.following() as progress:
        progress("asking what is known")
        # The endpoint knows which GPU a manifest selects: the fake one has to be the same.
        submitted = client.sizing(question)
        progress("running it on a fake device")
        options = EstimateOptions(submitted["gpu"], timeout_s=timeout_s, python=python)
        code = read_code(command, settings=load_settings(), options=options).code
        more = {"trace": summary(code)} if code.reserved_bytes else {}
        if more or submitted.get("gpu_count") is None:
            progress("comparing numbers of GPUs")
            client.sizing({**question, **more, "scaling": True, "measured_steps": dict(own_steps)})
    return str(question["name"])


def _answer(size_advices: "Sequence[SizeAdvice]") -> Answer:
    documents = [
        {
            **asdict(size_advice),
            "asked_milli_gpu": size_advice.requested_milli_gpu,
            "saved_milli_gpu": size_advice.saved_milli_gpu,
            "patch": size_advice.patch(),
        }
        for size_advice in size_advices
    ]
    return Answer(
        "recommendations",
        [_row(size_advice) for size_advice in size_advices],
        document={"recommendations": documents},
        remarks=_remarks(size_advices),
        empty="no workload was asked about yet: kopt recommend SCRIPT, or let the webhook ask",
    )


def _row(size_advice: "SizeAdvice") -> AdviceRow:
    return AdviceRow(
        size_advice.name,
        size_advice.gpu,
        size_advice.requested_milli_gpu,
        size_advice.peak_bytes,
        size_advice.low_bytes,
        size_advice.high_bytes,
        size_advice.advised,
        size_advice.saved_milli_gpu,
        None if size_advice.gpu_count is None else size_advice.gpu_count.useful_gpus,
        size_advice.confidence,
        size_advice.method,
        _why(size_advice),
    )


def _remarks(size_advices: "Sequence[SizeAdvice]") -> list[str]:
    from kopt.serving.contract.size_advice import saved_together

    saved = saved_together(size_advice.saved_milli_gpu for size_advice in size_advices)
    remarks = [f"Together they could give back {saved / 1000:g} GPUs."] if saved > 0 else []
    depends = sum(IF_SHARED in size_advice.advised for size_advice in size_advices)
    if saved > 0 and depends:
        remarks.append(f"{depends} of them only {IF_SHARED} (KAI Scheduler, HAMi or Volcano vGPU).")
    counts = [(each.name, each.gpu_count) for each in size_advices if each.gpu_count is not None]
    remarks += [f"{name}: {count.reasons[0].message}" for name, count in counts if count.reasons and count.gives_back]
    return remarks


def _patches(size_advices: "Sequence[SizeAdvice]") -> str:
    """YAML documents; a comment names the workload, or says why there is nothing to patch."""
    import yaml

    parts = []
    for size_advice in size_advices:
        patch = size_advice.patch()
        if patch is None:
            parts.append(f"# {printable(size_advice.name)}: no patch. {printable(size_advice.why_no_patch)}\n")
        else:
            # By way of JSON, so that nothing but plain values can stand in a patch.
            body = yaml.safe_dump(json.loads(json.dumps(patch)), sort_keys=False)
            parts.append(f"# {printable(size_advice.name)}: {size_advice.advised}\n{body}")
        count = size_advice.gpu_count
        if count is not None and count.gives_back:
            head = f"# {printable(size_advice.name)}: {count.in_words} GPUs are useful"
            operations = [json.loads(json.dumps(dict(operation))) for operation in count.patch]
            body = yaml.safe_dump(operations, sort_keys=False) if operations else ""
            parts.append(f"{head}, as a JSON Patch of the manifest\n{body}" if body else f"{head}. {count.no_patch}\n")
    return "---\n".join(parts)
