"""``kopt nodes scores``: what each node scores, part by part."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.output import Answer, column
from kopt.core.units import counted, format_span

if TYPE_CHECKING:
    from kopt.controllers.overview.devices.node_scores import NodeScores


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


@dataclass(frozen=True)
class ScoreRow:
    """Parts in GPUs; None where they are not weighed. ``use`` is the share of the node's GPUs in use."""

    node: str = column("node")
    score: float | None = column("score", show=lambda score: "" if score is None else f"{score:.2f}")
    utilisation: float | None = column("history", show=_part)
    health: float | None = column("health", show=_part)
    topology: float | None = column("topology", show=_part, drop=2)
    distribution: float | None = column("distribution", show=_part, drop=1)
    room: float | None = column("room", show=_part, drop=3)
    use: float | None = column("in use", show=lambda use: "" if use is None else f"{use:.0%}", drop=4)
    why: str = column("why")


def read(kubeconfig: Path | None, gpus: int, resource: str, url: str, token_file: Path | None) -> "NodeScores":
    """Raises Refused for a cluster or Prometheus that cannot be read."""
    return asyncio.run(_read(kubeconfig, gpus, resource, url, token_file))


async def _read(kubeconfig: Path | None, gpus: int, resource: str, url: str, token_file: Path | None) -> "NodeScores":
    from kopt.cluster.client.api import ApiError, connect
    from kopt.cluster.client.prometheus import PrometheusAddress, PrometheusError, asking
    from kopt.controllers.overview.devices.node_scores import read_node_scores

    try:
        async with connect(kubeconfig) as kube, asking(PrometheusAddress(url, token_file)) as query:
            return await read_node_scores(kube, gpus, resource, query)
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}") from error
    except PrometheusError as error:
        raise Refused(f"the use of nodes cannot be read: {error}") from error


def answer(scores: "NodeScores", gpus: int, resource: str, node: str, *, measured: bool) -> Answer:
    """All nodes, or one."""
    rows = [_row(scores, number) for number in range(len(scores.nodes)) if node in ("", scores.nodes[number].node)]
    if node and not rows:
        names = ", ".join(scored.node for scored in scores.nodes[:8]) or "none"
        raise Refused(f"no node {node!r} with {resource} that takes pods; there are {names}")
    policy = scores.policy
    remarks = [f"Of a pod on {counted(gpus, 'GPU')}, in GPUs of room; {_rule(scores)}."]
    if policy is not None and policy.weights.utilisation_history and not measured:
        remarks.append("The history is weighed, and not read here: add --prometheus URL.")
    remarks.append("Room that the extender keeps for the pods it usually sees is not counted here.")
    header = {"policy": policy.name if policy else None}
    empty = f"no node that takes pods has {resource}"
    return Answer("nodes", rows, header=header, remarks=remarks, empty=empty, hide_header=True)


def _rule(scores: "NodeScores") -> str:
    if scores.policy is None:
        return "there is no NodeSelectionPolicy, so the defaults count"
    weights = ", ".join(f"{name} {weight:g}" for name, weight in scores.policy.weights.by_field().items())
    window = format_span(scores.policy.window_s)
    return f"NodeSelectionPolicy {scores.policy.name} is in force: {weights}; use over the last {window}"


def _row(scores: "NodeScores", number: int) -> ScoreRow:
    scored = scores.nodes[number]
    parts = scored.parts
    room = sum(parts.get(name, 0.0) for name in ("fragmentation", "reserve", "fit", "cpu_fit"))
    why = [scored.refusal, f"avoided: {scored.complaint}" if scored.complaint else ""]
    return ScoreRow(
        scored.node,
        scored.score,
        parts.get("utilisation"),
        parts.get("health"),
        parts.get("topology"),
        parts.get("apart"),
        None if scored.score is None else room,
        scored.use,
        "; ".join(filter(None, why)),
    )
