"""``kopt explain``, ``diff`` and ``apply --dry-run``: why workloads are sized as they are, and what would change."""

import asyncio
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.endpoint import endpoint
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, PatchFormat
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.progress import step
from kopt.cli.script_arguments import MANIFESTS
from kopt.cli.sizing import running_workloads as running
from kopt.cli.sizing.running_workloads import Namespace, Sized
from kopt.core.units import format_bytes, format_gpus
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.controllers.overview.running_workloads import Change
    from kopt.serving.contract.size_advice import SizeAdvice

Workload = Annotated[
    str | None, typer.Argument(metavar="[WORKLOAD]", help="KIND/NAME or a manifest's file; none: all that run.")
]
_CONTEXT_LINES = 3


@dataclass(frozen=True)
class ReasonRow:
    """One thing that led to a size, or that was done about it."""

    what: str = column("what")
    text: str = column("why")


@dataclass(frozen=True)
class ChangeRow:
    """One workload's change. ``answer`` is what the API server says to it, where it was asked."""

    namespace: str = column("namespace")
    workload: str = column("workload")
    advised: str = column("ask for")
    saved_milli_gpu: int | None = column("saves", show=lambda milli: f"{milli / 1000:+g} GPU")
    accepted: bool | None = column("accepted")
    answer: str = column("answer")
    command: str = column("command", wide=True)


def explain(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="KIND/NAME, a manifest's file, or a name of `kopt recommend`.")
    ],
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    output: Output = Format.TABLE,
) -> None:
    """Why a workload is advised to ask for what it is, and what was decided about it.

    Examples:

        kopt explain job/finetune -n research

        kopt explain job.yaml

        kopt explain train.py -o json
    """
    settings = load_settings()
    if "/" not in workload and not workload.endswith(MANIFESTS):
        show(_remembered(workload, settings), output)
        return
    with step("asking what it needs"):
        sizeds = running.sized(settings, workload, kubeconfig, namespace)
    _check_single(workload, sizeds)
    answers = [(sized, _decided(sized, kubeconfig)) for sized in sizeds]
    show(_explained(answers), output)


def diff(
    workload: Workload = None,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    output: Annotated[
        PatchFormat, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)
    ] = PatchFormat.TABLE,
) -> None:
    """What would change in workloads if they asked for what they need.

    Examples:

        kopt diff -n research

        kopt diff deployment/chat -n research -o patch

        kopt diff job.yaml
    """
    sizeds = _sized(workload, kubeconfig, namespace)
    changes = [sized.change for sized in sizeds if sized.change is not None]
    if output is PatchFormat.PATCH:
        typer.echo(running.patches(sizeds), nl=False)
    elif output is PatchFormat.TABLE:
        typer.echo("".join(map(_unified, changes)), nl=False)
        typer.echo(_summary(sizeds), err=True)
    else:
        rows = [_row(sized) for sized in sizeds if sized.change is not None]
        documents = [running.document(sized) for sized in sizeds]
        show(Answer("changes", rows, document={"changes": documents}), Format(output.value))


def apply(
    workload: Workload = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Needed: the API server checks, nothing changes.")] = False,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    output: Output = Format.TABLE,
) -> None:
    """Have the API server check every change of `kopt diff`, with admission and all, without making any.

    kopt itself changes no workload from the command line: the answer holds the kubectl line for each. Status 1 when the
    server refuses one; Jobs that have begun cannot be changed, only their next run.

    Examples:

        kopt apply --dry-run -n research

        kopt apply --dry-run deployment/chat -o json | jq -r '.changes[].command'
    """
    if not dry_run:
        usage_error(
            "kopt changes no workload from here; with --dry-run it asks the API server whether it would "
            "accept, and `kopt diff -o patch` gives the kubectl lines",
            "--dry-run",
        )
    if workload is not None and workload.endswith(MANIFESTS):
        usage_error("a file is not in the cluster: name a workload as KIND/NAME", "WORKLOAD")
    sizeds = [sized for sized in _sized(workload, kubeconfig, namespace) if sized.change is not None]
    answers = asyncio.run(running.tried(kubeconfig, sizeds)) if sizeds else []
    rows = [_row(sized, answer) for sized, answer in zip(sizeds, answers, strict=True)]
    refused = sum(1 for answer in answers if answer)
    header = {"dry_run": True, "accepted": len(answers) - refused, "refused": refused}
    show(
        Answer(
            "changes",
            rows,
            header,
            empty="nothing to change",
            hide_header=True,
            remarks=[row.command for row in rows if row.accepted],
        ),
        output,
    )
    if refused:
        raise typer.Exit(1)


def _sized(workload: str | None, kubeconfig: Any, namespace: str) -> list[Sized]:
    with step("asking what workloads need"):
        return running.sized(load_settings(), workload, kubeconfig, namespace)


def _check_single(workload: str, sizeds: Sequence[Sized]) -> None:
    places = sorted({sized.pods.workload.namespace for sized in sizeds})
    if len(places) > 1:
        raise Refused(f"there is a {workload} in the namespaces {', '.join(places)}: say which with -n")


def _decided(sized: Sized, kubeconfig: Any) -> list[tuple[str, str]]:
    return asyncio.run(running.decisions(kubeconfig, sized.pods))


def _explained(result: Sequence[tuple[Sized, list[tuple[str, str]]]]) -> Answer:
    rows = [row for sized, decided in result for row in _reasons(sized, decided)]
    documents = [
        {**running.document(sized), "estimate": sized.answer, "decisions": [{"what": w, "text": t} for w, t in decided]}
        for sized, decided in result
    ]
    header = {} if len(result) != 1 or result[0][0].advice is None else _header(result[0][0].advice)
    return Answer("explanations", rows, header, document={"explanations": documents})


def _header(advice: "SizeAdvice") -> dict[str, str]:
    low, high = advice.low_bytes, advice.high_bytes
    requested = advice.requested_milli_gpu
    needs = "not known" if low is None or high is None else f"{format_bytes(low)} to {format_bytes(high)}"
    return {
        "runs": advice.script,
        "GPU": advice.gpu,
        "asks for": "–" if requested is None else f"{format_gpus(requested)} GPU",
        "needs": f"{needs} ({advice.method}, confidence {advice.confidence:.0%})",
        "advised": advice.advised,
    }


def _reasons(sized: Sized, decided: Sequence[tuple[str, str]]) -> Iterator[ReasonRow]:
    answer: Any = sized.answer or {}
    if sized.advice is not None:
        parts = [f"{name} {format_bytes(amount)}" for name, amount in sized.advice.breakdown.items() if amount]
        if parts:
            yield ReasonRow("at the peak", ", ".join(parts))
        yield from (ReasonRow(reason.code, reason.message) for reason in sized.advice.reasons)
    yield from (ReasonRow("assumed", str(text)) for text in answer.get("assumptions", ()))
    yield from (ReasonRow("warning", str(text)) for text in answer.get("warnings", ()))
    if model := answer.get("model"):
        yield ReasonRow("model", f"{model['name']} {model['version']}")
    class_ = sized.pods.workload.classified
    yield ReasonRow("class", f"{class_.workload_class}: {class_.why}")
    if sized.why:
        yield ReasonRow("no change", sized.why)
    yield from (ReasonRow(f"decided: {what}", text) for what, text in decided)


def _remembered(name: str, settings: Any) -> Answer:
    """What the endpoint keeps about a name of ``kopt recommend``."""
    with endpoint(settings) as client:
        advices = client.sizes()
    size_advices = [size_advice for size_advice in advices if size_advice.name == name]
    if not size_advices:
        raise Refused(f"nothing is known of {name!r}; `kopt recommend` lists what is, KIND/NAME names a workload")
    size_advice = size_advices[0]
    rows = [ReasonRow(reason.code, reason.message) for reason in size_advice.reasons]
    parts = ", ".join(f"{part} {format_bytes(amount)}" for part, amount in size_advice.breakdown.items() if amount)
    if parts:
        rows.insert(0, ReasonRow("at the peak", parts))
    return Answer(
        "explanations",
        rows,
        _header(size_advice),
        document={"explanations": [{**asdict(size_advice), "patch": size_advice.patch()}]},
    )


def _row(sized: Sized, answer: str | None = None) -> ChangeRow:
    assert sized.change is not None
    assert sized.advice is not None
    return ChangeRow(
        sized.pods.workload.namespace,
        sized.pods.label,
        sized.advice.advised,
        sized.saved_milli_gpu,
        None if answer is None else not answer,
        answer or "",
        sized.change.command,
    )


def _unified(change: "Change") -> str:
    """Before and after as YAML, as ``kubectl diff`` shows it."""
    import yaml

    of = change.of
    before, after = (
        yaml.safe_dump(running.plain(item), sort_keys=False).splitlines(keepends=True)
        for item in (change.before, change.after)
    )
    name = printable(f"{of.workload.namespace}/{of.label}")
    return "".join(difflib.unified_diff(before, after, f"now/{name}", f"advised/{name}", n=_CONTEXT_LINES))


def _summary(sizeds: Sequence[Sized]) -> str:
    from kopt.serving.contract.size_advice import saved_together

    saved = saved_together(sized.saved_milli_gpu for sized in sizeds if sized.change is not None)
    changed = sum(sized.change is not None for sized in sizeds)
    kept = [f"{sized.pods.label}: {sized.why}" for sized in sizeds if sized.change is None]
    lines = [f"{changed} of {len(sizeds)} workloads would change, giving back {saved / 1000:g} GPUs"]
    return "\n".join(printable(line) for line in [*lines, *kept[:20]])
