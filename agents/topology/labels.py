"""Labels of the node, for the levels of Kueue's and KAI's Topology and of Volcano's HyperNodes.

    kaiwo.ai/gpu-link          nvlink, xgmi, c2c or pcie: the fastest link between GPUs of the node
    kaiwo.ai/gpu-link-shape    full (every GPU to every other one), partial, or none
    kaiwo.ai/nvlink-domain     nodes with the same value share NVLink (cluster and clique of the NVLink fabric)
    kaiwo.ai/topology-block    nodes below the same second-tier switches
    kaiwo.ai/topology-rack     nodes below the same first switch

Below them is ``kubernetes.io/hostname``. Blocks and racks come from labels that a cloud or another tool has written,
else from a description of the fabric; unknown values are not written.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import LinkType, NodeTopology

LINK, SHAPE, DOMAIN = "kaiwo.ai/gpu-link", "kaiwo.ai/gpu-link-shape", "kaiwo.ai/nvlink-domain"
BLOCK, RACK = "kaiwo.ai/topology-block", "kaiwo.ai/topology-rack"
OURS = (LINK, SHAPE, DOMAIN, BLOCK, RACK)

DOMAIN_LABELS = ("nvidia.com/gpu.clique", "network.topology.nvidia.com/accelerator")
LEVELS: tuple[tuple[str, str], ...] = (
    ("network.topology.nvidia.com/spine", "network.topology.nvidia.com/leaf"),
    ("cloud.google.com/gce-topology-block", "cloud.google.com/gce-topology-subblock"),
    ("topology.k8s.aws/network-node-layer-2", "topology.k8s.aws/network-node-layer-3"),
    ("oci.oraclecloud.com/rdma.network_block_id", "oci.oraclecloud.com/rdma.local_block_id"),
    ("cloud.provider.com/topology-block", "cloud.provider.com/topology-rack"),
    ("topology.kubernetes.io/block", "topology.kubernetes.io/rack"),
)
"""Block and rack: topograph, GKE, EKS, OKE, the names of Kueue's documentation, and those that people choose."""

_SPEED = (LinkType.C2C, LinkType.NVLINK, LinkType.XGMI, LinkType.METAXLINK)
_LONGEST = 63
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class LabelSettings:
    """``levels`` are pairs of labels (block, rack) that are looked for before the known ones."""

    write: bool = True
    levels: Sequence[tuple[str, str]] = ()


def labels_of(
    topology: NodeTopology | None,
    domain: str,
    fabric: Fabric | None,
    node: str,
    labels: Mapping[str, str],
    settings: LabelSettings,
) -> dict[str, str]:
    """What the node's labels should say; ``labels`` are those it has. Empty where labels are not to be written."""
    if not settings.write:
        return {}
    result = dict(_of_links(topology)) if topology is not None else {}
    block, rack = _levels(labels, settings.levels)
    fabric_block, fabric_rack, fabric_domain = _of_fabric(fabric, node) if fabric is not None else ("", "", "")
    existing = next((labels[name] for name in DOMAIN_LABELS if labels.get(name)), "")
    result |= {DOMAIN: domain or existing or fabric_domain, BLOCK: block or fabric_block, RACK: rack or fabric_rack}
    cleaned = {name: _value(text) for name, text in result.items()}
    return {name: text for name, text in cleaned.items() if text}


def _of_links(topology: NodeTopology) -> Mapping[str, str]:
    count = len(topology.gpus)
    expected = count * (count - 1) // 2
    if not expected:
        return {}
    direct = [link for link in topology.links if link.type.direct]
    fastest = next((kind for kind in _SPEED if any(link.type is kind for link in direct)), None)
    shape = "full" if len(direct) == expected else "partial" if direct else "none"
    return {LINK: fastest.value.lower() if fastest else "pcie", SHAPE: shape}


def _levels(labels: Mapping[str, str], own: Sequence[tuple[str, str]]) -> tuple[str, str]:
    for block, rack in (*own, *LEVELS):
        if labels.get(block) or labels.get(rack):
            return labels.get(block, ""), labels.get(rack, "")
    return "", ""


def _of_fabric(fabric: Fabric, node: str) -> tuple[str, str, str]:
    """Block, rack and NVLink domain of a node; a level that is not one switch has no name."""
    hosts = {host.key for host in fabric.hosts if host.node == node}
    names = {switch.key: switch.name or switch.key for switch in fabric.switches}
    every = {host.key for host in fabric.hosts}
    beside: dict[str, set[str]] = {}
    for cable in fabric.cables:
        beside.setdefault(cable.a, set()).add(cable.b)
        beside.setdefault(cable.b, set()).add(cable.a)
    racks = {name for host in hosts for name in beside.get(host, ()) if name in names}
    blocks = {name for rack in racks for name in beside.get(rack, ()) if name in names and not beside[name] & every}
    domains = {host.domain for host in fabric.hosts if host.node == node and host.domain}
    return _only([names[block] for block in blocks]), _only([names[name] for name in racks]), _only(list(domains))


def _only(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _value(text: str) -> str:
    return _FORBIDDEN.sub("-", text).strip("-._")[:_LONGEST].rstrip("-._")
