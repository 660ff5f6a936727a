"""What each node of a cluster scores for a pod, part by part, under the NodeSelectionPolicy in force."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.prometheus import Query
from kopt.cluster.client.resources import NODE_SELECTION_POLICIES
from kopt.cluster.objects.custom.node_selection_policy import in_force, stored_of
from kopt.cluster.workloads.placement.node_use import history_of, usage_query
from kopt.controllers.overview.devices.fleet import read_fleet
from kopt.core.hardware.node_selection import NodeSelectionPolicy
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import Ask, PodRequest
from kopt.policies.placement.feasible import SENTENCES
from kopt.policies.placement.fleet import Fleet


@dataclass(frozen=True)
class NodeScore:
    """``score`` and its ``parts`` in GPUs; None and none for a node that cannot take the pod: ``refusal`` says why.

    ``use``: the share of its GPUs in use over the policy's window, None where that is not known. ``complaint``: what
    is wrong with the node, in words.
    """

    node: str
    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    use: float | None = None
    refusal: str = ""
    complaint: str = ""


@dataclass(frozen=True)
class NodeScores:
    """The best node first. ``policy`` is the one in force, None where the defaults count."""

    policy: NodeSelectionPolicy | None
    nodes: tuple[NodeScore, ...]


async def read_node_scores(kube: Kube, gpus: int, resource: str, query: Query | None) -> NodeScores:
    """For a pod on ``gpus`` GPUs of a resource. Raises ApiError, and PrometheusError where ``query`` gets no answer."""
    fleet, policy = await asyncio.gather(read_fleet(kube), _read_policy(kube))
    fleet.select_by(policy)
    if query is not None:
        window_s = (policy or NodeSelectionPolicy("")).window_s
        fleet.set_history(history_of(await query(usage_query(window_s)), window_s))
    return NodeScores(policy, tuple(sorted(_scores(fleet, gpus, resource), key=_order)))


async def _read_policy(kube: Kube) -> NodeSelectionPolicy | None:
    try:
        documents: Iterable[dict[str, object]] = (await kube.list(NODE_SELECTION_POLICIES)).items
    except NotFound:
        return None
    stored = in_force(map(stored_of, documents))
    return stored.policy if stored is not None else None


def _scores(fleet: Fleet, gpus: int, resource: str) -> Iterator[NodeScore]:
    pool = fleet.pools.get(resource)
    if pool is None:
        return
    ask = Ask(PodRequest(gpus=GpuRequest(gpus)), {resource: gpus})
    for node, row in pool.state.index.items():
        choice = fleet.choose_row(pool, ask, row).choice
        refusal = next((SENTENCES[code] for code in choice.rejected), "")
        score = None if choice.node is None else choice.score
        yield NodeScore(node, score, choice.breakdown, fleet.history.of.get(node), refusal, fleet.complaints.text(node))


def _order(scored: NodeScore) -> tuple[bool, bool, float, str]:
    """As the extender prefers them: those that are not degraded first."""
    return scored.score is None, bool(scored.complaint), -(scored.score or 0.0), scored.node
