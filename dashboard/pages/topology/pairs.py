"""Pairs of nodes on the topology page: what each was measured to reach beside what is predicted, and which are sick."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kopt.core.hardware.pairwise import Health
from kopt.core.units import format_bytes
from kopt.dashboard.formatting import amount, clock, natural
from kopt.dashboard.pages.topology.data import Pairs
from kopt.dashboard.pages.topology.pairs_figure import Cell, State, pair_map
from kopt.serving.contract.bandwidth.pairwise_answers import ExpectedOut, PairNodeOut, PairOut, PairsResponse

MOST_NODES = 96
"""In the picture; those with something wrong go first."""
MOST_LISTED = 40

Couple = tuple[str, str]


@dataclass(frozen=True)
class Kind:
    """What was measured: a collective with so many GPUs of each node."""

    key: str
    label: str
    pairs: int


@dataclass(frozen=True)
class PairsCard:
    """One cluster. ``nodes`` of the ``total_nodes`` are drawn, in the order of their domains; ``sick`` are told with
    their reasons, as are pairs that are slow or failed without such a node."""

    cluster: str
    clusters: tuple[str, ...]
    kinds: tuple[Kind, ...]
    kind: str
    nodes: tuple[PairNodeOut, ...]
    total_nodes: int
    measured: int
    sick: tuple[PairNodeOut, ...]
    bad: tuple[PairOut, ...]
    chart: go.Figure


@dataclass(frozen=True)
class PairsPart:
    """Of the page; ``card`` is None where nothing was measured."""

    problem: str = ""
    card: PairsCard | None = None


def pairs_part(pairs: Pairs, cluster: str = "", kind: str = "") -> PairsPart:
    """What the page shows of the measured pairs; a cluster or kind that is not there is answered by the first."""
    if not pairs.clusters:
        return PairsPart(pairs.problem)
    result = next((measured for measured in pairs.clusters if measured.name == cluster), pairs.clusters[0])
    names = tuple(measured.name for measured in pairs.clusters)
    return PairsPart(pairs.problem, _card(result, names, kind))


def _card(cluster_pairs: PairsResponse, clusters: tuple[str, ...], requested_kind: str) -> PairsCard:
    kinds = _kinds(cluster_pairs.pairs)
    kind = next((item.key for item in kinds if item.key == requested_kind), kinds[0].key if kinds else "")
    pairs = {pair.pair.nodes: pair for pair in cluster_pairs.pairs if _key(pair) == kind}
    sick = [node for node in cluster_pairs.nodes if node.health is not Health.HEALTHY]
    nodes = _drawn(cluster_pairs.nodes, pairs)
    wanted = _expected(cluster_pairs.expected, kind)
    cells = {
        (a.name, b.name): _cell(a, b, pairs.get((a.name, b.name)), wanted)
        for a in nodes
        for b in nodes
        if a.name < b.name
    }
    named = {pair_node.name for pair_node in sick}
    bad = [
        pair for pair in pairs.values() if pair.pair.health is not Health.HEALTHY and not named & set(pair.pair.nodes)
    ]
    return PairsCard(
        cluster_pairs.name,
        clusters,
        kinds,
        kind,
        nodes,
        len(cluster_pairs.nodes),
        len(pairs),
        tuple(sick),
        tuple(bad[:MOST_LISTED]),
        pair_map([(node.name, node.domains) for node in nodes], cells),
    )


def _key(pair: PairOut) -> str:
    return f"{pair.pair.collective.value}-{pair.pair.gpus_per_node}"


def _kinds(pairs: Sequence[PairOut]) -> tuple[Kind, ...]:
    """That of most pairs first."""
    many = Counter((pair.pair.collective, pair.pair.gpus_per_node) for pair in pairs)
    return tuple(
        Kind(f"{kind.value}-{gpus}", f"{kind.value}, {gpus} GPU{'s' if gpus > 1 else ''} per node", count)
        for (kind, gpus), count in sorted(many.items(), key=lambda item: (-item[1], item[0]))
    )


def _drawn(nodes: Sequence[PairNodeOut], pairs: Mapping[Couple, PairOut]) -> tuple[PairNodeOut, ...]:
    bad = Counter(name for couple, pair in pairs.items() if pair.pair.health is not Health.HEALTHY for name in couple)
    first = sorted(nodes, key=lambda node: (node.health is Health.HEALTHY, -bad[node.name], natural(node.name)))
    return tuple(sorted(first[:MOST_NODES], key=lambda pair_node: (pair_node.domains, natural(pair_node.name))))


def _expected(expecteds: Sequence[ExpectedOut], kind: str) -> Mapping[tuple[str, ...], ExpectedOut]:
    return {
        expected.machines: expected
        for expected in expecteds
        if f"{expected.collective.value}-{expected.gpus_per_node}" == kind
    }


def _cell(a: PairNodeOut, b: PairNodeOut, view: PairOut | None, wanted: Mapping[tuple[str, ...], ExpectedOut]) -> Cell:
    title = f"{a.name} with {b.name}"
    if view is None:
        machines = tuple(sorted({pair_node.machine for pair_node in (a, b) if pair_node.machine is not None}))
        expected = wanted.get(machines) if a.machine and b.machine else None
        prediction = f"predicted {amount(expected.predicted_gbps)} GB/s" if expected else "nothing is predicted"
        return Cell(
            State.UNMEASURED,
            f"{title}\nnot measured; {prediction}",
            None,
            expected.predicted_gbps if expected else None,
        )
    pair, measured = view.pair, view.measured_gbps
    state = {Health.SLOW: State.SLOW, Health.FAILED: State.FAILED}.get(pair.health, State.HEALTHY)
    share = measured / view.predicted_gbps if measured and view.predicted_gbps else None
    lines = [title, _reached(view, share)]
    if pair.alpha_us is not None and pair.beta_gbps is not None:
        lines.append(f"alpha {amount(pair.alpha_us)} µs, beta {amount(pair.beta_gbps)} GB/s")
    lines.append(f"measured {clock(pair.measured_at)}" + (f", {pair.software}" if pair.software else ""))
    if state is not State.HEALTHY:
        lines.append(f"{state.value}: {pair.reason[:160]}" if pair.reason else state.value)
    return Cell(state, "\n".join(lines), share, measured)


def _reached(view: PairOut, share: float | None) -> str:
    predicted = f"predicted {amount(view.predicted_gbps)} GB/s" if view.predicted_gbps else "nothing is predicted"
    if view.measured_gbps is None:
        return predicted
    size = format_bytes(max(point.bytes for point in view.pair.points))
    of = f", {share:.0%} of that" if share else ""
    return f"{amount(view.measured_gbps)} GB/s at {size}; {predicted}{of}"
