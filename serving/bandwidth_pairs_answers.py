"""What callers of ``/v1/bandwidth/pairs`` tell and get, as frozen values. Standard library only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.core.bandwidth import Collective
from kopt.core.pairs import Health, MeasuredPair
from kopt.core.prediction import ModelVersion
from kopt.core.topology import NodeTopology
from kopt.serving.answers import AnswerError
from kopt.serving.wire import SCHEMA


@dataclass(frozen=True)
class PairsKept:
    """``kept`` of the pairs are what is kept now; of ``unknown_nodes`` the topology is wanted."""

    cluster: str
    kept: int
    unknown_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairView:
    """A measured pair beside what it was predicted to reach at its largest size, in GB/s of bus bandwidth."""

    pair: MeasuredPair
    predicted_gbps: float | None = None
    low_gbps: float | None = None
    high_gbps: float | None = None

    @property
    def measured_gbps(self) -> float | None:
        return measured_gbps(self.pair)


@dataclass(frozen=True)
class PairNode:
    """``machine`` is the same for nodes of the same hardware; None where that is not known."""

    name: str
    health: Health = Health.HEALTHY
    reason: str = ""
    domains: tuple[str, ...] = ()
    machine: str | None = None


@dataclass(frozen=True)
class Expected:
    """What a pair of these machines is predicted to reach, measured or not."""

    machines: tuple[str, ...]
    gpus_per_node: int
    collective: Collective
    bytes: int
    predicted_gbps: float


@dataclass(frozen=True)
class ClusterPairs:
    cluster: str = ""
    clusters: tuple[str, ...] = ()
    nodes: tuple[PairNode, ...] = ()
    pairs: tuple[PairView, ...] = ()
    expected: tuple[Expected, ...] = ()
    model: ModelVersion = field(default_factory=lambda: ModelVersion("", ""))


def measured_gbps(pair: MeasuredPair) -> float | None:
    """Bus bandwidth at the largest size; None for a failed pair."""
    point = max(pair.points, key=lambda one: one.bytes, default=None)
    if point is None or point.latency_us <= 0:
        return None
    return point.bytes / point.latency_us / 1e3 * pair.collective.bus_factor(2 * pair.gpus_per_node)


def pairs_request(
    cluster: str, pairs: Sequence[MeasuredPair], topologies: Mapping[str, NodeTopology] | None = None,
    domains: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The body of a POST."""
    return {
        "cluster": cluster, "pairs": [one.to_dict() for one in pairs],
        "topologies": {name: one.to_dict() for name, one in (topologies or {}).items()},
        "domains": {name: list(levels) for name, levels in (domains or {}).items()},
    }  # fmt: skip


def parse_kept(document: Mapping[str, Any]) -> PairsKept:
    """The answer to a POST. Raises AnswerError for anything else."""
    _checked(document)
    try:
        unknown = tuple(map(str, document["unknown_nodes"]))
        return PairsKept(str(document["cluster"]), int(document["kept"]), unknown)
    except (KeyError, TypeError, ValueError) as error:
        raise _strange(error) from error


def parse_pairs(document: Mapping[str, Any]) -> ClusterPairs:
    """The answer to a GET. Raises AnswerError for anything else."""
    _checked(document)
    try:
        return ClusterPairs(
            str(document["cluster"] or ""), tuple(map(str, document["clusters"])),
            tuple(map(_node, document["nodes"])), tuple(map(_view, document["pairs"])),
            tuple(map(_expected, document["expected"])),
            ModelVersion(*(str(document["model"][name]) for name in ("name", "version", "digest"))),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _strange(error) from error


def _checked(document: Mapping[str, Any]) -> None:
    if document.get("schema") != SCHEMA:
        raise AnswerError(f"expected a {SCHEMA} document, got {str(document.get('schema'))[:40]!r}")


def _strange(error: Exception) -> AnswerError:
    return AnswerError(f"/v1/bandwidth/pairs answered something unexpected: {error!r}")


def _node(one: Mapping[str, Any]) -> PairNode:
    domains = tuple(map(str, one["domains"]))
    return PairNode(str(one["name"]), Health(one["health"]), str(one["reason"]), domains, one["machine"])


def _view(one: Mapping[str, Any]) -> PairView:
    figures = (None if one[name] is None else float(one[name]) for name in ("predicted_gbps", "low_gbps", "high_gbps"))
    return PairView(MeasuredPair.from_dict(one), *figures)


def _expected(one: Mapping[str, Any]) -> Expected:
    return Expected(tuple(map(str, one["machines"])), int(one["gpus_per_node"]), Collective(one["collective"]),
                    int(one["bytes"]), float(one["predicted_gbps"]))  # fmt: skip
