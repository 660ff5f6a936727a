"""``kopt crds``: which custom resource definitions a cluster has, what would change, and the change."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import counted
from kopt.policies.queues.differences import in_words

if TYPE_CHECKING:
    from kopt.cli.crds.planning import DefinitionPlan

app = typer.Typer(
    no_args_is_help=True,
    help="Compare the custom resource definitions of a cluster with those of this version, and bring them up to date.",
)

_MOST_CHARS = 60

Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", metavar="FILE", help="Definitions, or a folder of them; default: of this version."),
]
ForceConflicts = Annotated[
    bool, typer.Option("--force-conflicts", help="Also definitions that others own, or that are not labelled as ours.")
]


@dataclass(frozen=True)
class DefinitionRow:
    """A definition; ``versions`` are those of this version of kopt, the stored one first."""

    name: str = column("name")
    versions: list[str] = column("versions", show=", ".join)
    state: str = column("state")
    problems: list[str] = column("problems", show="; ".join)


@dataclass(frozen=True)
class ChangeRow:
    """A field of a definition."""

    name: str = column("name")
    state: str = column("state")
    field: str = column("field")
    before: str = column("before", show=lambda text: _short(text))
    after: str = column("after", show=lambda text: _short(text))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


@app.command("list")
def list_(file: Files = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """List the definitions of this version, and whether the cluster has them so.

    Examples:

        kopt crds list

        kopt crds list -o json
    """
    plans = asyncio.run(_plans(file or [], kubeconfig))
    rows = [DefinitionRow(plan.name, _versions(plan), plan.state.value, list(plan.problems)) for plan in plans]
    show(Answer("definitions", rows, remarks=[_summary(plans)]), output)


@app.command("diff")
def diff(
    file: Files = None,
    force_conflicts: ForceConflicts = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what `kopt crds apply` would change, by a dry run on the API server. Status 1 where it would refuse.

    Examples:

        kopt crds diff

        kopt crds diff -f deploy/chart/crds -o json
    """
    plans = asyncio.run(_plans(file or [], kubeconfig, force_conflicts=force_conflicts))
    _show_changes(plans, output, dry_run=True)


@app.command("apply")
def apply(
    file: Files = None,
    force_conflicts: ForceConflicts = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what changes in the definitions, then write them (server-side apply, field manager kopt-crds).

    Nothing is written while anything is refused: a version in which objects are stored, a field that an object has or
    of which you may not see whether one has it, a definition that is not labelled as ours. Those that somebody else
    than helm and kubectl manages, such as Argo CD, are left as they are. helm itself never updates definitions; with
    `crds.upgrade` the chart runs this before each upgrade.

    Examples:

        kopt crds apply --dry-run

        kopt crds apply -f deploy/chart/crds
    """
    plans = asyncio.run(_plans(file or [], kubeconfig, force_conflicts=force_conflicts))
    _show_changes(plans, output, dry_run=dry_run)
    if not dry_run:
        written, error = asyncio.run(_write(plans, kubeconfig))
        typer.echo(f"{counted(written, 'definition')} written", err=True)
        if error:
            raise Refused(error)


async def _plans(
    files: Sequence[Path], kubeconfig: Path | None, *, force_conflicts: bool = False
) -> "list[DefinitionPlan]":
    from kopt.cli.crds.planning import plan
    from kopt.cli.crds.sources import definitions_of

    definitions = definitions_of(files)
    async with open_cluster(kubeconfig, forbidden="you may not do this") as kube:
        return await plan(kube, definitions, force_conflicts=force_conflicts)


async def _write(plans: "Sequence[DefinitionPlan]", kubeconfig: Path | None) -> tuple[int, str]:
    """How many were written, and the error that ended it."""
    from kopt.cli.crds.planning import write
    from kopt.cluster.client.api import ApiError, connect

    written = 0
    try:
        async with connect(kubeconfig) as kube:
            async for name, error in write(kube, plans):
                if error:
                    return written, f"{name}: {error}"
                written += 1
    except ApiError as failed:
        return written, str(failed)
    return written, ""


def _show_changes(plans: "Sequence[DefinitionPlan]", output: Format, *, dry_run: bool) -> None:
    """Ends with status 1 where something is refused."""
    rows = [
        ChangeRow(plan.name, plan.state.value, field.path, in_words(field.before), in_words(field.after))
        for plan in plans
        for field in plan.fields
    ]
    problems = [f"{plan.name}: {problem}" for plan in plans for problem in plan.problems]
    header = {"dry_run": dry_run, "problems": problems}
    conflicts = [
        f"{plan.name} is left to {plan.manager}; --force-conflicts takes it over." for plan in plans if plan.manager
    ]
    remarks = [_summary(plans), *conflicts]
    show(Answer("changes", rows, header=header, remarks=remarks, empty="nothing changes", hide_header=True), output)
    for problem in problems:
        typer.echo(f"kopt: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _versions(plan: "DefinitionPlan") -> list[str]:
    versions = sorted(plan.document["spec"]["versions"], key=lambda each: not each["storage"])
    return [str(each["name"]) for each in versions if each["served"]]


def _summary(plans: "Sequence[DefinitionPlan]") -> str:
    from kopt.cli.crds.planning import State

    by_state = {state: sum(plan.state is state for plan in plans) for state in State}
    counts = ", ".join(f"{number} {state.value}" for state, number in by_state.items() if number)
    refused = sum(bool(plan.problems) for plan in plans)
    return f"{counts}{f'; {refused} refused, so nothing is written' if refused else ''}."
