"""``kopt policies plan`` and ``apply``: what would change, then the writes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kopt.cli.errors import Refused
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.policies.manifests import Declared, declared, declared_in, with_cluster
from kopt.core.units import counted
from kopt.policies.queues.differences import Action

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.policies.queues.differences import ApplyPlan


@dataclass(frozen=True)
class PolicyChangeRow:
    """An object that a policy becomes, and what happens to it. ``fields`` are those that change."""

    policy: str = column("policy")
    action: str = column("action")
    kind: str = column("kind")
    name: str = column("name")
    fields: list[str] = column("changes", show=lambda names: ", ".join(names[:3]) + (" …" if len(names) > 3 else ""))


def plan_policies(files: Sequence[Path], kubeconfig: Path | None, output: Format, *, offline: bool) -> None:
    """Ends with status 1 where something is refused."""
    if offline:
        _plan_offline(files, output)
        return

    async def planning(kube: "Kube") -> "tuple[Declared, ApplyPlan]":
        policies = await declared(kube, files)
        return policies, await _planned(kube, policies)

    policies, plan = asyncio.run(with_cluster(kubeconfig, planning))
    if output is Format.YAML and not plan.problems:
        _show_objects(policies)
        return
    _show(plan, policies, 0, "", output, dry_run=True)


def apply_policies(files: Sequence[Path], kubeconfig: Path | None, output: Format, *, dry_run: bool) -> None:
    """Shows what changes, then writes it. Ends with status 1 where something is refused."""

    async def applying(kube: "Kube") -> "tuple[Declared, ApplyPlan, int, str]":
        policies = await declared(kube, files)
        plan = await _planned(kube, policies)
        applied, error = (0, "") if dry_run or plan.problems else await _write(kube, policies, plan, stored=bool(files))
        return policies, plan, applied, error

    policies, plan, applied, error = asyncio.run(with_cluster(kubeconfig, applying))
    _show(plan, policies, applied, error, output, dry_run=dry_run)


async def _planned(kube: "Kube", policies: Declared) -> "ApplyPlan":
    from kopt.cluster.workloads.compliance import surroundings
    from kopt.controllers.compliance.applying import plan_apply

    return await plan_apply(kube, [policy for policy, _ in policies], surroundings())


async def _write(kube: "Kube", policies: Declared, plan: "ApplyPlan", *, stored: bool) -> tuple[int, str]:
    """How many objects were written, and the error that ended it. ``stored``: the policies are not there yet."""
    from kopt.cluster.client.api import NotFound
    from kopt.controllers.compliance.applying import apply_plan, store

    owners: dict[str, Any] = {}
    try:
        for policy, document in policies:
            owners[policy.name] = await store(kube, document) if stored else document
    except NotFound:
        raise Refused("CompliancePolicies are not installed in this cluster; the chart brings the CRD") from None
    applied, error = 0, ""
    async for _, error in apply_plan(kube, plan, owners):
        applied += not error
    return applied, error


def _plan_offline(files: Sequence[Path], output: Format) -> None:
    from kopt.cluster.workloads.compliance import surroundings
    from kopt.policies.compliance.compile import compile_policy
    from kopt.policies.compliance.offline import syntax_errors

    if not files:
        raise typer.BadParameter("--offline needs -f", param_hint="--offline")
    policies = declared_in(files)
    around = surroundings()
    try:
        errors = [error for policy, _ in policies for error in syntax_errors(policy, around)]
    except ModuleNotFoundError:
        errors = []
        typer.echo("kopt: the CEL was not parsed, as the extra compliance is not installed", err=True)
    except ValueError as error:
        raise Refused(str(error)) from None
    if errors:
        raise Refused(" · ".join(errors))
    if output is Format.YAML:
        _show_objects(policies)
        return
    rows = [
        PolicyChangeRow(policy.name, "compile", document["kind"], document["metadata"]["name"], [])
        for policy, _ in policies
        for document in compile_policy(policy, around)
    ]
    show(Answer("changes", rows, header={"dry_run": True, "applied": 0, "problems": []}, hide_header=True), output)


def _show_objects(policies: Declared) -> None:
    """Documents for ``kubectl apply -f -``."""
    import yaml

    from kopt.cluster.workloads.compliance import surroundings
    from kopt.policies.compliance.compile import compile_policy

    around = surroundings()
    objects = [document for policy, _ in policies for document in compile_policy(policy, around)]
    typer.echo(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True), nl=False)


def _show(plan: "ApplyPlan", policies: Declared, applied: int, error: str, output: Format, *, dry_run: bool) -> None:
    from kopt.policies.compliance.compile import policy_name

    problems = [*plan.problems, *([error] if error else [])]
    rows = [
        PolicyChangeRow(
            policy_name(dict(change.document)),
            change.action.value,
            change.kind,
            change.name,
            [field.path for field in change.fields],
        )
        for change in plan.changes
        if change.action is not Action.KEEP
    ]
    header = {"dry_run": dry_run, "applied": applied, "problems": problems}
    remarks = [_summary(plan, applied, dry_run), *_beside(policies)]
    show(Answer("changes", rows, header=header, remarks=remarks, empty="nothing changes", hide_header=True), output)
    for problem in problems:
        typer.echo(f"kopt: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def _summary(plan: "ApplyPlan", applied: int, dry_run: bool) -> str:
    kept = sum(change.action is Action.KEEP for change in plan.changes)
    if plan.problems:
        return f"Nothing was written: {counted(len(plan.problems), 'problem')}."
    written = f"{counted(len(plan.writes), 'object')} would be written" if dry_run else ""
    return f"{written or counted(applied, 'object') + ' written'}, {kept} as they should be."


def _beside(policies: Declared) -> list[str]:
    """What the API server cannot enforce by itself."""
    named = [policy.name for policy, _ in policies if policy.team is not None]
    return [f"maximumPerTeam of {', '.join(named)} is enforced by `kopt webhook`."] if named else []
