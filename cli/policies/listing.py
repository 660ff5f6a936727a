"""``kopt policies list``: the policies of a cluster, and whether the API server has what they become."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.output import Answer, Format, column, show
from kopt.cli.policies.manifests import declared, with_cluster
from kopt.core.times import optional_stamp

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.core.workload.compliance import CompliancePolicy


@dataclass(frozen=True)
class PolicyRow:
    """``state``: enforced, not applied, or differs from what `kopt policies apply` would write."""

    policy: str = column("policy")
    mode: str = column("mode")
    applies: str = column("applies to", drop=1)
    parts: list[str] = column("asks for", show=", ".join)
    state: str = column("state")
    exemptions: int = column("open exemptions", drop=2)
    next_end: str | None = column("next ends", show=lambda at: at or "–", drop=3)
    warnings: list[str] = column("type checks", show=lambda texts: str(len(texts)) if texts else "–", drop=4)


def list_policies(kubeconfig: Path | None, output: Format) -> None:
    """Raises Refused."""

    async def reading(kube: "Kube") -> list[PolicyRow]:
        return [await _row(kube, policy) for policy, _ in await declared(kube, ())]

    rows = asyncio.run(with_cluster(kubeconfig, reading))
    remarks = [f"{row.policy}: {warning}" for row in rows for warning in row.warnings]
    if any(row.state != "enforced" for row in rows):
        remarks.append("`kopt policies apply` writes what is not enforced.")
    show(Answer("policies", rows, remarks=remarks, empty="there are no CompliancePolicies"), output)


async def _row(kube: "Kube", policy: "CompliancePolicy") -> PolicyRow:
    from kopt.cluster.workloads.compliance import surroundings
    from kopt.controllers.compliance.applying import plan_apply, type_warnings
    from kopt.policies.queues.differences import Action

    plan = await plan_apply(kube, [policy], surroundings(), verifies=False)
    actions = {change.action for change in plan.changes}
    if plan.problems or not actions <= {Action.KEEP}:
        state = "not applied" if actions <= {Action.CREATE} else "differs"
    else:
        state = "enforced" if actions else "webhook only"
    open_until = sorted(item.until_s for item in policy.exemptions if item.until_s > time.time())
    return PolicyRow(
        policy.name,
        policy.mode.value,
        policy.applies.value,
        part_names(policy),
        state,
        len(open_until),
        optional_stamp(open_until[0] if open_until else None),
        await type_warnings(kube, policy.name),
    )


def part_names(policy: "CompliancePolicy") -> list[str]:
    """The parts of a policy by name."""
    parts = {
        "images": policy.allowed_images or policy.denied_images,
        "hardware": policy.allowed_hardware,
        "regions": policy.allowed_regions,
        "residency": policy.residency,
        "size": policy.maximum_gpus is not None,
        "team totals": policy.team,
        "rules": policy.rules,
        "defaults": policy.defaults,
    }
    return [name for name, part in parts.items() if part]
