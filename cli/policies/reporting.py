"""``kopt policies report``: how what runs stands to the policies."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.policies.manifests import declared, with_cluster
from kopt.core.times import optional_stamp, stamp
from kopt.core.workload.compliance import Standing

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.controllers.compliance.report import Standings


@dataclass(frozen=True)
class PodRow:
    """A pod that does not simply conform."""

    pod: str
    standing: str
    messages: list[str]
    exempt_until: str | None


@dataclass(frozen=True)
class ReportRow:
    """The pods of a namespace under a policy, counted."""

    namespace: str = column("namespace")
    policy: str = column("policy")
    mode: str = column("mode", drop=1)
    pods: int = column("pods")
    violating: int = column("violating")
    exempt: int = column("exempt")
    exempt_until: str | None = column("exempt until", show=lambda at: at or "–", drop=2)
    not_evaluated: int = column("not evaluated", drop=3)
    team_totals: list[str] = column("team totals", show=lambda texts: "; ".join(texts) or "–", drop=4)
    findings: list[PodRow] = column(
        "first finding", show=lambda pods: f"{pods[0].pod}: {pods[0].messages[0]}" if pods else "–", drop=5
    )


def report_policies(
    files: Sequence[Path], namespace: str, policy: str, kubeconfig: Path | None, output: Format
) -> None:
    """Raises Refused."""
    now_s = time.time()

    async def reading(kube: "Kube") -> "list[Standings]":
        from kopt.controllers.compliance.report import read_report

        policies = [each for each, _ in await declared(kube, files) if policy in ("", each.name)]
        if policy and not policies:
            raise Refused(f"there is no CompliancePolicy {policy!r}")
        return await read_report(kube, policies, now_s)

    listed = asyncio.run(with_cluster(kubeconfig, reading))
    rows = [row_of(each) for each in listed if namespace in ("", each.namespace)]
    wrong = sum(row.violating for row in rows)
    remarks = [f"{wrong} of {sum(row.pods for row in rows)} checks found a violation."] if rows else []
    empty = "no policy applies to a namespace in which pods run"
    header = {"at": stamp(now_s)}
    show(Answer("report", rows, header=header, remarks=remarks, empty=empty, hide_header=True), output)


def row_of(standings: "Standings") -> ReportRow:
    """One row; the violations come first in its findings."""
    ends = [pod.exempt_until_s for pod in standings.pods if pod.exempt_until_s is not None]
    ordered = sorted(standings.pods, key=lambda pod: (pod.standing is not Standing.VIOLATES, pod.pod))
    return ReportRow(
        standings.namespace,
        standings.policy.name,
        standings.policy.mode.value,
        standings.evaluated,
        standings.number(Standing.VIOLATES),
        standings.number(Standing.EXEMPT),
        optional_stamp(min(ends, default=None)),
        standings.number(Standing.NOT_EVALUATED),
        list(standings.team_excess),
        [
            PodRow(pod.pod, pod.standing.value, list(pod.messages), optional_stamp(pod.exempt_until_s))
            for pod in ordered
        ],
    )
