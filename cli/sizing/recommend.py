"""``kopt recommend``: what workloads ask for, what they need, and the patch that says so."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.endpoint import endpoint, sizing_question
from kopt.cli.errors import usage_error
from kopt.cli.options import Kubeconfig, PatchFormat
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.progress import Steps, step
from kopt.cli.script_arguments import Arguments, Gpu, Python, Timeout, command_of
from kopt.cli.sizing import running_workloads as running
from kopt.cli.sizing.running_workloads import Namespace, Sized
from kopt.core.units import format_bytes, format_gpus
from kopt.serving.runtime.environment import load_settings

if TYPE_CHECKING:
    from kopt.serving.client.client import PredictionClient
    from kopt.serving.contract.size_advice import SizeAdvice

PatchOutput = Annotated[PatchFormat, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)]
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
    confidence: float = column("confidence", show=lambda share: f"{share:.0%}", drop=3)
    method: str = column("by", wide=True)
    why: str = column("why", wide=True)


@dataclass(frozen=True)
class RunningRow:
    """Pods of one kind of a workload that runs; ``saved_milli_gpu`` is what all of them together give back."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    pods: int = column("pods")
    gpu: str = column("GPU")
    asked_milli_gpu: int | None = column("asked each", show=lambda milli: f"{format_gpus(milli)} GPU")
    peak_bytes: int | None = column("needs", show=format_bytes)
    low_bytes: int | None = column("from", show=format_bytes, drop=1)
    high_bytes: int | None = column("to", show=format_bytes, drop=2)
    advice: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    confidence: float | None = column("confidence", show=lambda share: f"{share:.0%}", drop=3)
    method: str = column("by", wide=True)
    why: str = column("why", wide=True)


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
    output: PatchOutput = PatchFormat.TABLE,
) -> None:
    """What workloads ask for, what they need, and the patch that says so.

    Without WORKLOAD: all job types that the endpoint (KOPT_URL) was asked about. With one: the script runs on a fake
    device here, and what it said is sent to the endpoint, which remembers it for the job type. With --running: the
    workloads of a cluster; `kopt explain`, `kopt diff` and `kopt apply --dry-run` go on from there.

    Examples:

        kopt recommend

        kopt recommend job.yaml --python ~/envs/train/bin/python -o patch

        kopt recommend --running -n research
    """
    if cluster:
        if workload is not None:
            usage_error("--running is about the whole cluster; `kopt explain KIND/NAME` is about one", "--running")
        _running(kubeconfig, namespace, output)
        return
    settings = load_settings()
    with endpoint(settings) as client:
        if workload is None:
            size_advices: Sequence[SizeAdvice] = client.sizes()
        else:
            name = _submit(client, command_of(workload, arguments or []), gpu, timeout, python)
            size_advices = [size_advice for size_advice in client.sizes() if size_advice.name == name][:1]
    if output is PatchFormat.PATCH:
        typer.echo(_patches(size_advices), nl=False)
    else:
        show(_answer(size_advices), Format(output.value))


def _running(kubeconfig: Any, namespace: str, output: PatchFormat) -> None:
    with step("asking what workloads need"):
        sizeds = running.sized(load_settings(), None, kubeconfig, namespace)
    if output is PatchFormat.PATCH:
        typer.echo(running.patches(sizeds), nl=False)
        return
    from kopt.serving.contract.size_advice import saved_together

    saved = saved_together(sized.saved_milli_gpu for sized in sizeds)
    remarks = [f"Together they could give back {saved / 1000:g} GPUs: kopt diff"] if saved else []
    remarks += [f"{sized.pods.label}: {sized.why}" for sized in sizeds if sized.advice is None]
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


def _running_row(sized: Sized) -> RunningRow:
    pods, advice = sized.pods, sized.advice
    columns = (pods.workload.namespace, pods.label, pods.pods.pods)
    if advice is None:
        return RunningRow(*columns, pods.gpu, pods.pods.gpus, None, None, None, "", None, None, "", sized.why)
    return RunningRow(
        *columns,
        advice.gpu,
        advice.asked_milli_gpu,
        advice.peak_bytes,
        advice.low_bytes,
        advice.high_bytes,
        advice.advised,
        sized.saved_milli_gpu,
        advice.confidence,
        advice.method,
        advice.why_no_advice or " ".join(reason.message for reason in advice.reasons[:3]),
    )


def _submit(client: "PredictionClient", command: Any, gpu: str | None, timeout_s: float, python: str | None) -> str:
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
        if code.reserved_bytes:
            client.sizing({**question, "trace": summary(code)})
    return str(question["name"])


def _answer(size_advices: "Sequence[SizeAdvice]") -> Answer:
    documents = [
        {
            **asdict(size_advice),
            "asked_milli_gpu": size_advice.asked_milli_gpu,
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
        size_advice.asked_milli_gpu,
        size_advice.peak_bytes,
        size_advice.low_bytes,
        size_advice.high_bytes,
        size_advice.advised,
        size_advice.saved_milli_gpu,
        size_advice.confidence,
        size_advice.method,
        size_advice.why_no_advice or " ".join(reason.message for reason in size_advice.reasons[:3]),
    )


def _remarks(size_advices: "Sequence[SizeAdvice]") -> list[str]:
    from kopt.serving.contract.size_advice import saved_together

    saved = saved_together(size_advice.saved_milli_gpu for size_advice in size_advices)
    return [f"Together they could give back {saved / 1000:g} GPUs."] if saved > 0 else []


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
    return "---\n".join(parts)
