"""Pairs of nodes on the topology page: what each was measured to reach beside what is predicted, and which are sick."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kopt.core.pairs import Health
from kopt.core.units import format_bytes
from kopt.dashboard.sources import Pairs
from kopt.dashboard.topology_pairs_figure import Cell, State, pair_map
from kopt.dashboard.wording import amount, clock
from kopt.serving.bandwidth_pairs_answers import ClusterPairs, Expected, PairNode, PairView

MOST_NODES = 96
"""In the picture; those with something wrong go first."""
MOST_LISTED = 40

Couple = tuple[str, str]


@dataclass(frozen=True)
class Kind:
    """What was measured: a collective with so many GPUs of each node."""

    key: str
    words: str
    pairs: int


@dataclass(frozen=True)
class PairsCard:
    """One cluster. ``nodes`` of the ``known`` are drawn, in the order of their domains; ``sick`` are told with their
    reasons, as are pairs that are slow or failed without such a node."""

    cluster: str
    clusters: tuple[str, ...]
    kinds: tuple[Kind, ...]
    kind: str
    nodes: tuple[PairNode, ...]
    known: int
    measured: int
    sick: tuple[PairNode, ...]
    bad: tuple[PairView, ...]
    chart: go.Figure


@dataclass(frozen=True)
class PairsPart:
    """Of the page; ``card`` is None where nothing was measured."""

    problem: str = ""
    card: PairsCard | None = None


def pairs_part(pairs: Pairs, cluster: str = "", kind: str = "") -> PairsPart:
    """What the page shows of the measured pairs; a cluster or kind that is not there is answered by the first."""
    if not pairs.found:
        return PairsPart(pairs.problem)
    found = next((one for one in pairs.found if one.cluster == cluster), pairs.found[0])
    names = tuple(one.cluster for one in pairs.found)
    return PairsPart(pairs.problem, _card(found, names, kind))


def _card(found: ClusterPairs, clusters: tuple[str, ...], asked: str) -> PairsCard:
    kinds = _kinds(found.pairs)
    kind = next((one.key for one in kinds if one.key == asked), kinds[0].key if kinds else "")
    pairs = {one.pair.nodes: one for one in found.pairs if _key(one) == kind}
    sick = [one for one in found.nodes if one.health is not Health.HEALTHY]
    nodes = _drawn(found.nodes, pairs)
    wanted = _expected(found.expected, kind)
    cells = {
        (a.name, b.name): _cell(a, b, pairs.get((a.name, b.name)), wanted)
        for a in nodes for b in nodes if a.name < b.name
    }  # fmt: skip
    named = {one.name for one in sick}
    bad = [one for one in pairs.values() if one.pair.health is not Health.HEALTHY and not named & set(one.pair.nodes)]
    return PairsCard(
        found.cluster, clusters, kinds, kind, nodes, len(found.nodes), len(pairs), tuple(sick),
        tuple(bad[:MOST_LISTED]), pair_map([(one.name, one.domains) for one in nodes], cells),
    )  # fmt: skip


def _key(one: PairView) -> str:
    return f"{one.pair.collective.value}-{one.pair.gpus_per_node}"


def _kinds(pairs: Sequence[PairView]) -> tuple[Kind, ...]:
    """That of most pairs first."""
    many = Counter((one.pair.collective, one.pair.gpus_per_node) for one in pairs)
    return tuple(
        Kind(f"{kind.value}-{gpus}", f"{kind.value}, {gpus} GPU{'s' if gpus > 1 else ''} per node", count)
        for (kind, gpus), count in sorted(many.items(), key=lambda item: (-item[1], item[0]))
    )


def _drawn(nodes: Sequence[PairNode], pairs: Mapping[Couple, PairView]) -> tuple[PairNode, ...]:
    bad = Counter(name for couple, one in pairs.items() if one.pair.health is not Health.HEALTHY for name in couple)
    first = sorted(nodes, key=lambda one: (one.health is Health.HEALTHY, -bad[one.name], _natural(one.name)))
    return tuple(sorted(first[:MOST_NODES], key=lambda one: (one.domains, _natural(one.name))))


def _natural(name: str) -> list[tuple[int, str]]:
    """``gpu-9`` before ``gpu-10``."""
    return [(int(digits or 0), text) for text, digits in re.findall(r"(\D*)(\d{0,15})", name)]


def _expected(found: Sequence[Expected], kind: str) -> Mapping[tuple[str, ...], Expected]:
    return {one.machines: one for one in found if f"{one.collective.value}-{one.gpus_per_node}" == kind}


def _cell(a: PairNode, b: PairNode, view: PairView | None, wanted: Mapping[tuple[str, ...], Expected]) -> Cell:
    title = f"{a.name} with {b.name}"
    if view is None:
        machines = tuple(sorted({one.machine for one in (a, b) if one.machine is not None}))
        one = wanted.get(machines) if a.machine and b.machine else None
        said = f"predicted {amount(one.predicted_gbps)} GB/s" if one else "nothing is predicted"
        return Cell(State.UNMEASURED, f"{title}\nnot measured; {said}", None, one.predicted_gbps if one else None)
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


def _reached(view: PairView, share: float | None) -> str:
    predicted = f"predicted {amount(view.predicted_gbps)} GB/s" if view.predicted_gbps else "nothing is predicted"
    if view.measured_gbps is None:
        return predicted
    size = format_bytes(max(point.bytes for point in view.pair.points))
    of = f", {share:.0%} of that" if share else ""
    return f"{amount(view.measured_gbps)} GB/s at {size}; {predicted}{of}"
