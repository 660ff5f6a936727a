"""``kopt queues apply``: what would change, then the writes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.queues.fair_sharing import fair_sharing_for
from kopt.cli.queues.view import remarks_of
from kopt.core.scheduling.queue_tree import Compiled, Engine
from kopt.core.units import counted
from kopt.policies.queues.differences import Action, ObjectChange, in_words

if TYPE_CHECKING:
    from kopt.cluster.workloads.kueue.own_configuration import FairSharingState
    from kopt.policies.queues import QueueTree
    from kopt.policies.queues.differences import ApplyPlan

_NAMES = {Engine.KUEUE: "Kueue 0.15 or later", Engine.KAI: "KAI Scheduler", Engine.VOLCANO: "Volcano"}


@dataclass(frozen=True)
class ChangeRow:
    """A field of an object, or an object as a whole."""

    action: str = column("action")
    kind: str = column("kind")
    name: str = column("name")
    field: str = column("field")
    before: str = column("before")
    after: str = column("after")


def apply_tree(
    tree: "QueueTree",
    engine: Engine,
    compiled: Compiled,
    kubeconfig: Path | None,
    output: Format,
    *,
    dry_run: bool,
    prune: bool,
) -> None:
    """Shows what changes, then writes it. Ends with status 1 where something is refused."""
    plan, applied, error, fair = asyncio.run(_run(tree, engine, compiled, kubeconfig, dry_run=dry_run, prune=prune))
    problems = [*plan.problems, *([error] if error else [])]
    header = {"engine": engine.value, "dry_run": dry_run, "applied": applied, "problems": problems}
    header |= {"fair_sharing": fair.state.value} if fair else {}
    remarks = [_summary(plan, applied, dry_run), *remarks_of(tree, compiled, fair)]
    rows = [row for change in plan.changes for row in _rows(change)]
    answer = Answer("changes", rows, header=header, remarks=remarks, empty="nothing changes", hide_header=True)
    show(answer, output)
    for problem in problems:
        typer.echo(f"kopt: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


async def _run(
    tree: "QueueTree", engine: Engine, compiled: Compiled, kubeconfig: Path | None, *, dry_run: bool, prune: bool
) -> "tuple[ApplyPlan, int, str, FairSharingState | None]":
    """The plan, how many objects were written, the error that ended it, and whether weights count."""
    from kopt.controllers.queues.applying import apply_plan, plan_apply

    applied, error = 0, ""
    async with open_cluster(
        kubeconfig, missing=f"{_NAMES[engine]} is not installed in this cluster", forbidden="you may not do this"
    ) as kube:
        plan = await plan_apply(kube, tree, compiled, engine, prune=prune)
        fair = await fair_sharing_for(kube, compiled, engine)
        if not plan.problems and not dry_run:
            async for _, error in apply_plan(kube, plan):
                applied += not error
    return plan, applied, error, fair


def _rows(change: ObjectChange) -> list[ChangeRow]:
    if change.action is Action.KEEP:
        return []
    if change.action in (Action.DELETE, Action.RELEASE, Action.LEAVE):
        return [ChangeRow(change.action.value, change.kind, change.name, "", "", change.why)]
    return [
        ChangeRow(
            change.action.value, change.kind, change.name, field.path, in_words(field.before), in_words(field.after)
        )
        for field in change.fields
    ]


def _summary(plan: "ApplyPlan", applied: int, dry_run: bool) -> str:
    kept = sum(change.action is Action.KEEP for change in plan.changes)
    written = len(plan.writes)
    if plan.problems:
        return f"Nothing was written: {counted(len(plan.problems), 'problem')}."
    done = f"{counted(written, 'object')} would be written" if dry_run else f"{counted(applied, 'object')} written"
    return f"{done}, {kept} as they should be."
