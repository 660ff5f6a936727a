"""``kopt recommend``: what workloads ask for, what they need, and the patch that says so."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli import running
from kopt.cli.edge import usage_error
from kopt.cli.endpoint import endpoint, sizing_question
from kopt.cli.options import Shown
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.progress import Steps, step
from kopt.cli.running import Kubeconfig, Namespace, Sized
from kopt.cli.scripts import Arguments, Gpu, Python, Timeout, command_of
from kopt.core.units import format_bytes, format_gpus
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.serving.client import PredictionClient
    from kopt.serving.size_advice import SizeAdvice

ShownOutput = Annotated[Shown, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)]
Running = Annotated[bool, typer.Option("--running", help="The GPU workloads that run in a cluster now.")]


@dataclass(frozen=True)
class AdviceRow:
    """One workload: asked, needed with its interval, advised, saved."""

    name: str = column("workload")
    gpu: str = column("GPU")
    asked_milli_gpu: int | None = column("asked", show=lambda milli: f"{milli / 1000:g} GPU")
    peak_bytes: int | None = column("needs", show=format_bytes)
    low_bytes: int | None = column("from", show=format_bytes)
    high_bytes: int | None = column("to", show=format_bytes)
    advice: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    confidence: float = column("confidence", show=lambda share: f"{share:.0%}")
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
    low_bytes: int | None = column("from", show=format_bytes)
    high_bytes: int | None = column("to", show=format_bytes)
    advice: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    confidence: float | None = column("confidence", show=lambda share: f"{share:.0%}")
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
    arguments: Arguments = None, gpu: Gpu = None, timeout: Timeout = 60, python: Python = None,
    cluster: Running = False, kubeconfig: Kubeconfig = None, namespace: Namespace = "",
    output: ShownOutput = Shown.TABLE,
) -> None:  # fmt: skip
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
            found: Sequence[SizeAdvice] = client.sizes()
        else:
            name = _told(client, command_of(workload, arguments or []), gpu, timeout, python)
            found = [one for one in client.sizes() if one.name == name][:1]
    if output is Shown.PATCH:
        typer.echo(_patches(found), nl=False)
    else:
        show(_answer(found), Format(output.value))


def _running(kubeconfig: Any, namespace: str, output: Shown) -> None:
    with step("asking what workloads need"):
        found = running.sized(load_settings(), None, kubeconfig, namespace)
    if output is Shown.PATCH:
        typer.echo(running.patches(found), nl=False)
        return
    saved = sum(max(0, one.saved_milli_gpu or 0) for one in found)
    notes = [f"Together they could give back {saved / 1000:g} GPUs: kopt diff"] if saved else []
    notes += [f"{one.pods.label}: {one.why}" for one in found if one.advice is None]
    show(Answer("recommendations", [_running_row(one) for one in found], notes=notes,
                document={"recommendations": [running.document(one) for one in found]},
                empty="no workload that asks for GPUs runs here"), Format(output.value))  # fmt: skip


def _running_row(one: Sized) -> RunningRow:
    pods, advice = one.pods, one.advice
    place = (pods.workload.namespace, pods.label, pods.pods.pods)
    if advice is None:
        return RunningRow(*place, pods.gpu, pods.pods.gpus, None, None, None, "", None, None, "", one.why)
    return RunningRow(
        *place, advice.gpu, advice.asked_milli_gpu, advice.peak_bytes, advice.low_bytes, advice.high_bytes,
        advice.advised, one.saved_milli_gpu, advice.confidence, advice.method,
        " ".join(reason.message for reason in advice.reasons[:3]),
    )  # fmt: skip


def _told(client: "PredictionClient", command: Any, gpu: str | None, timeout_s: float, python: str | None) -> str:
    """Run the workload on a fake device and send what it said; returns the name that its advice has."""
    from kopt.models.sizing.estimate import EstimateOptions, code_of
    from kopt.models.sizing.summary import summary

    question = sizing_question(command, gpu)
    with Steps() as steps, steps.following() as progress:
        progress("asking what is known")
        # The endpoint knows which GPU a manifest selects: the fake one has to be the same.
        told = client.sizing(question)
        progress("running it on a fake device")
        options = EstimateOptions(told["gpu"], timeout_s=timeout_s, python=python)
        code = code_of(command, settings=load_settings(), options=options)
        if code.reserved_bytes:
            client.sizing({**question, "trace": summary(code)})
    return str(question["name"])


def _answer(found: "Sequence[SizeAdvice]") -> Answer:
    documents = [
        {**asdict(one), "asked_milli_gpu": one.asked_milli_gpu, "saved_milli_gpu": one.saved_milli_gpu,
         "patch": one.patch()}
        for one in found
    ]  # fmt: skip
    return Answer(
        "recommendations", [_row(one) for one in found], document={"recommendations": documents},
        notes=_notes(found), empty="no workload was asked about yet: kopt recommend SCRIPT, or let the webhook ask",
    )  # fmt: skip


def _row(one: "SizeAdvice") -> AdviceRow:
    return AdviceRow(
        one.name, one.gpu, one.asked_milli_gpu, one.peak_bytes, one.low_bytes, one.high_bytes, one.advised,
        one.saved_milli_gpu, one.confidence, one.method, " ".join(reason.message for reason in one.reasons[:3]),
    )  # fmt: skip


def _notes(found: "Sequence[SizeAdvice]") -> list[str]:
    saved = sum(one.saved_milli_gpu or 0 for one in found)
    return [f"Together they could give back {saved / 1000:g} GPUs."] if saved > 0 else []


def _patches(found: "Sequence[SizeAdvice]") -> str:
    """YAML documents; a comment names the workload, or says why there is nothing to patch."""
    import yaml

    parts = []
    for one in found:
        patch = one.patch()
        if patch is None:
            parts.append(f"# {printable(one.name)}: no patch, its size is not known\n")
        else:
            # By way of JSON, so that nothing but plain values can stand in a patch.
            body = yaml.safe_dump(json.loads(json.dumps(patch)), sort_keys=False)
            parts.append(f"# {printable(one.name)}: {one.advised}\n{body}")
    return "---\n".join(parts)
