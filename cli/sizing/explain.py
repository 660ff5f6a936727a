"""``kopt explain``, ``diff`` and ``apply --dry-run``: why workloads are sized as they are, and what would change."""

import asyncio
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli import running
from kopt.cli.edge import Refused, usage_error
from kopt.cli.endpoint import endpoint
from kopt.cli.options import Output, Shown
from kopt.cli.output import Answer, Format, column, printable, show
from kopt.cli.progress import step
from kopt.cli.running import Kubeconfig, Namespace, Sized
from kopt.cli.scripts import MANIFESTS
from kopt.core.units import format_bytes, format_gpus
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.controllers.running import Change
    from kopt.serving.size_advice import SizeAdvice

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
        found = running.sized(settings, workload, kubeconfig, namespace)
    _only_one(workload, found)
    answers = [(one, _decided(one, kubeconfig)) for one in found]
    show(_explained(answers), output)


def diff(
    workload: Workload = None,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "",
    output: Annotated[
        Shown, typer.Option("-o", "--output", help="How to print the answer.", show_choices=True)
    ] = Shown.TABLE,
) -> None:
    """What would change in workloads if they asked for what they need.

    Examples:

        kopt diff -n research

        kopt diff deployment/chat -n research -o patch

        kopt diff job.yaml
    """
    found = _asked(workload, kubeconfig, namespace)
    changes = [one.change for one in found if one.change is not None]
    if output is Shown.PATCH:
        typer.echo(running.patches(found), nl=False)
    elif output is Shown.TABLE:
        typer.echo("".join(map(_unified, changes)), nl=False)
        typer.echo(_summary(found), err=True)
    else:
        rows = [_row(one) for one in found if one.change is not None]
        documents = [running.document(one) for one in found]
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
        usage_error("kopt changes no workload from here; with --dry-run it asks the API server whether it would "
                    "accept, and `kopt diff -o patch` gives the kubectl lines", "--dry-run")  # fmt: skip
    if workload is not None and workload.endswith(MANIFESTS):
        usage_error("a file is not in the cluster: name a workload as KIND/NAME", "WORKLOAD")
    found = [one for one in _asked(workload, kubeconfig, namespace) if one.change is not None]
    said = asyncio.run(running.tried(kubeconfig, found)) if found else []
    rows = [_row(one, answer) for one, answer in zip(found, said, strict=True)]
    refused = sum(1 for answer in said if answer)
    facts = {"dry_run": True, "accepted": len(said) - refused, "refused": refused}
    show(Answer("changes", rows, facts, empty="nothing to change", hidden_facts=True,
                notes=[row.command for row in rows if row.accepted]), output)  # fmt: skip
    if refused:
        raise typer.Exit(1)


def _asked(workload: str | None, kubeconfig: Any, namespace: str) -> list[Sized]:
    with step("asking what workloads need"):
        return running.sized(load_settings(), workload, kubeconfig, namespace)


def _only_one(workload: str, found: Sequence[Sized]) -> None:
    places = sorted({one.pods.workload.namespace for one in found})
    if len(places) > 1:
        raise Refused(f"there is a {workload} in the namespaces {', '.join(places)}: say which with -n")


def _decided(one: Sized, kubeconfig: Any) -> list[tuple[str, str]]:
    return asyncio.run(running.decisions(kubeconfig, one.pods))


def _explained(found: Sequence[tuple[Sized, list[tuple[str, str]]]]) -> Answer:
    rows = [row for one, decided in found for row in _reasons(one, decided)]
    documents = [
        {**running.document(one), "estimate": one.answer, "decisions": [{"what": w, "text": t} for w, t in decided]}
        for one, decided in found
    ]
    facts = {} if len(found) != 1 or found[0][0].advice is None else _facts(found[0][0].advice)
    return Answer("explanations", rows, facts, document={"explanations": documents})


def _facts(advice: "SizeAdvice") -> dict[str, str]:
    low, high = advice.low_bytes, advice.high_bytes
    asked = advice.asked_milli_gpu
    needs = "not known" if low is None or high is None else f"{format_bytes(low)} to {format_bytes(high)}"
    return {
        "runs": advice.script, "GPU": advice.gpu, "asks for": "–" if asked is None else f"{format_gpus(asked)} GPU",
        "needs": f"{needs} ({advice.method}, confidence {advice.confidence:.0%})", "advised": advice.advised,
    }  # fmt: skip


def _reasons(one: Sized, decided: Sequence[tuple[str, str]]) -> Iterator[ReasonRow]:
    answer: Any = one.answer or {}
    if one.advice is not None:
        parts = [f"{name} {format_bytes(amount)}" for name, amount in one.advice.breakdown.items() if amount]
        if parts:
            yield ReasonRow("at the peak", ", ".join(parts))
        yield from (ReasonRow(reason.code, reason.message) for reason in one.advice.reasons)
    yield from (ReasonRow("assumed", str(text)) for text in answer.get("assumptions", ()))
    yield from (ReasonRow("warning", str(text)) for text in answer.get("warnings", ()))
    if model := answer.get("model"):
        yield ReasonRow("model", f"{model['name']} {model['version']}")
    if one.why:
        yield ReasonRow("no change", one.why)
    yield from (ReasonRow(f"decided: {what}", text) for what, text in decided)


def _remembered(name: str, settings: Any) -> Answer:
    """What the endpoint keeps about a name of ``kopt recommend``."""
    with endpoint(settings) as client:
        known = client.sizes()
    found = [one for one in known if one.name == name]
    if not found:
        raise Refused(f"nothing is known of {name!r}; `kopt recommend` lists what is, KIND/NAME names a workload")
    one = found[0]
    rows = [ReasonRow(reason.code, reason.message) for reason in one.reasons]
    parts = ", ".join(f"{part} {format_bytes(amount)}" for part, amount in one.breakdown.items() if amount)
    if parts:
        rows.insert(0, ReasonRow("at the peak", parts))
    return Answer("explanations", rows, _facts(one), document={"explanations": [{**asdict(one), "patch": one.patch()}]})


def _row(one: Sized, answer: str | None = None) -> ChangeRow:
    assert one.change is not None
    assert one.advice is not None
    return ChangeRow(
        one.pods.workload.namespace, one.pods.label, one.advice.advised, one.saved_milli_gpu,
        None if answer is None else not answer, answer or "", one.change.command,
    )  # fmt: skip


def _unified(change: "Change") -> str:
    """Before and after as YAML, as ``kubectl diff`` shows it."""
    import yaml

    of = change.of
    before, after = (
        yaml.safe_dump(running.plain(one), sort_keys=False).splitlines(keepends=True)
        for one in (change.before, change.after)
    )
    name = printable(f"{of.workload.namespace}/{of.label}")
    return "".join(difflib.unified_diff(before, after, f"now/{name}", f"advised/{name}", n=_CONTEXT_LINES))


def _summary(found: Sequence[Sized]) -> str:
    saved = sum(one.saved_milli_gpu or 0 for one in found if one.change is not None)
    changed = sum(one.change is not None for one in found)
    kept = [f"{one.pods.label}: {one.why}" for one in found if one.change is None]
    lines = [f"{changed} of {len(found)} workloads would change, giving back {saved / 1000:g} GPUs"]
    return "\n".join(printable(line) for line in [*lines, *kept[:20]])
