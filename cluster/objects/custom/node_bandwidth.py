"""``NodeBandwidth`` objects, as the pairwise benchmark controller writes them, as core types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import NODES, Object
from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.hardware.pairwise import Health, MeasuredPair
from kopt.core.times import seconds, stamp

MOST_PEERS = 512
"""In one object; what was measured longest ago is left out."""


@dataclass(frozen=True)
class NodeBandwidth:
    """The verdict on a node, and the pairs that lie in its object. ``evaluated_at``: Unix seconds."""

    node: str
    health: Health = Health.HEALTHY
    reason: str = ""
    evaluated_at: float = 0.0
    pairs: tuple[MeasuredPair, ...] = ()


def bandwidth_of(document: Object) -> NodeBandwidth:
    """Raises BandwidthError, a ValueError, for an object that cannot be read."""
    node, status = str(document["metadata"]["name"]), document.get("status") or {}
    try:
        pairs = tuple([_pair(node, peer) for peer in status.get("peers") or ()])
        health, evaluated = Health(status.get("health") or Health.HEALTHY), status.get("judgedAt")
        return NodeBandwidth(
            node, health, str(status.get("reason") or ""), seconds(evaluated) if evaluated else 0.0, pairs
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BandwidthError(f"NodeBandwidth {node} cannot be read ({error})") from error


def key(pair: MeasuredPair) -> tuple[Any, ...]:
    """What a newer measurement takes the place of."""
    return pair.nodes, pair.collective, pair.gpus_per_node


def status_of(bandwidth: NodeBandwidth) -> Object:
    """The ``status`` of the object."""
    newest = sorted(bandwidth.pairs, key=lambda pair: pair.measured_at)[-MOST_PEERS:]
    return {
        "health": bandwidth.health.value,
        "reason": bandwidth.reason[:1024],
        "judgedAt": stamp(bandwidth.evaluated_at),
        "peers": [
            _peer(measured_pair)
            for measured_pair in sorted(
                newest,
                key=lambda measured_pair: (measured_pair.nodes, measured_pair.collective, measured_pair.gpus_per_node),
            )
        ],
    }


def owned_by(node: str, uid: str) -> Object:
    """The ``metadata`` of a node's object: it goes when the node does."""
    owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node, "uid": uid}
    return {"name": node, "ownerReferences": [owner]}


def _peer(pair: MeasuredPair) -> Object:
    result: Object = {
        "node": pair.nodes[1],
        "gpusPerNode": pair.gpus_per_node,
        "collective": pair.collective.value,
        "points": [{"bytes": point.bytes, "latencyMicroseconds": point.latency_us} for point in pair.points],
        "measuredAt": stamp(pair.measured_at),
        "software": pair.software[:128],
        "health": pair.health.value,
        "reason": pair.reason[:1024],
    }
    if pair.alpha_us is not None and pair.beta_gbps is not None:
        result |= {"alphaMicroseconds": pair.alpha_us, "betaGBps": pair.beta_gbps}
    return result


def _pair(node: str, peer: Mapping[str, Any]) -> MeasuredPair:
    points = [
        {"bytes": point["bytes"], "latency_us": point["latencyMicroseconds"]} for point in peer.get("points") or ()
    ]
    return MeasuredPair.from_dict(
        {
            "nodes": [node, peer["node"]],
            "gpus_per_node": peer["gpusPerNode"],
            "collective": peer["collective"],
            "measured_at": seconds(peer["measuredAt"]),
            "points": points,
            "alpha_us": peer.get("alphaMicroseconds"),
            "beta_gbps": peer.get("betaGBps"),
            "software": peer.get("software"),
            "health": peer.get("health"),
            "reason": peer.get("reason"),
        }
    )
