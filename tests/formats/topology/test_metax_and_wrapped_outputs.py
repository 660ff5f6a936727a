"""``mx-smi topo -m``, and matrices that a terminal broke at its width."""

from dataclasses import replace

import pytest
import topology_outputs as rendered
from topology_outputs import Machine, node

from kopt.core.hardware.node_topology import LinkType, NodeTopology
from kopt.formats.topology import FormatError
from kopt.policies.placement.links import links_of
from kopt.topology.from_node import machine_from

GPUS = 8
LEGEND = """
Legend:
  X    = Self
  SYS  = Over PCIe and the interconnect between NUMA nodes
  NODE = Over PCIe and the interconnect of host bridges within a NUMA node
  PHB  = Over PCIe and one host bridge
  PXB  = Over several PCIe bridges
  PIX  = Over one PCIe bridge at most
  MX   = Connection traversing MetaXLink
  ETH  = Over Ethernet
  NA   = Unknown
"""


def cell(a: int, b: int) -> str:
    return "X" if a == b else "MX" if a // 4 == b // 4 else "NODE"


def metax(cell: "object" = cell) -> str:
    """The matrix of two quads of linked GPUs, laid out as mx-smi 2.2.9 does."""
    head = "        " + "".join(f"GPU{gpu}    " for gpu in range(GPUS)) + "Node Affinity  CPU Affinity\n"
    rows = [
        f"GPU{a}    " + "".join(f"{cell(a, b):<8}" for b in range(GPUS)) + f"{a // 4:<15}0-31,64-95\n"  # type: ignore[operator]
        for a in range(GPUS)
    ]
    banner = "=================== MetaX System Management Interface Log ===================\n"
    stamp = f"{'Timestamp':<50}: Wed Feb 11 09:55:49 2026\n\n{'Attached GPUs':<50}: {GPUS}\n"
    return f"mx-smi  version: 2.2.9\n\n{banner}{stamp}Device link type matrix\n{head}{''.join(rows)}{LEGEND}"


def test_mx_smi_tells_links_and_numa_nodes() -> None:
    topology = node(metax())
    assert (topology.tool, topology.vendor) == ("mx-smi topo -m", "metax")
    assert [gpu.numa for gpu in topology.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    direct = {(link.a, link.b) for link in topology.links if link.type is LinkType.METAXLINK}
    assert direct == {(a, b) for a in range(GPUS) for b in range(a + 1, GPUS) if a // 4 == b // 4}
    assert NodeTopology.from_dict(topology.to_dict()) == topology


def test_metax_gpus_without_links_are_known_by_the_banner() -> None:
    topology = node(metax(lambda a, b: "X" if a == b else "SYS"))
    assert (topology.vendor, {link.type for link in topology.links}) == ("metax", {LinkType.SYS})


def test_linked_metax_gpus_are_placed_together_and_their_speed_is_a_doubt() -> None:
    topology = node(metax())
    gbps = links_of(topology).gbps
    assert min(gbps[0][b] for b in (1, 2, 3)) > max(gbps[0][b] for b in (4, 5, 6, 7))
    assert "speed of MetaXLink" in machine_from(topology).node.unknown


@pytest.mark.parametrize(("old", "new"), [("MX      MX", "ETH     MX"), ("MX   =", "NV#  ="), ("NODE", "NOD")])
def test_a_damaged_matrix_of_mx_smi_is_refused(old: str, new: str) -> None:
    with pytest.raises(FormatError):
        node(metax().replace(old, new, 1))


WIDE = Machine(
    tuple(tuple("X" if a == b else "NV18" for b in range(8)) for a in range(8)),
    tuple(tuple("PIX" if a == nic else "NODE" if a // 4 == nic // 4 else "SYS" for a in range(8)) for nic in range(8)),
)


def broken(text: str, columns: int, *, keep_blanks: bool) -> str:
    """As a terminal of so many columns shows it; what copies from one often drops blanks at the ends of lines."""
    pieces = [line[at : at + columns] for line in text.splitlines() for at in range(0, max(1, len(line)), columns)]
    return "".join((piece if keep_blanks else piece.rstrip()) + "\n" for piece in pieces)


@pytest.mark.parametrize("keep_blanks", [True, False])
@pytest.mark.parametrize("columns", [80, 100, 120, 132, 140])
def test_a_matrix_that_a_terminal_broke_is_put_together(columns: int, keep_blanks: bool) -> None:
    text = rendered.topo_m(WIDE, raw=False).expandtabs(8)
    topology = node(broken(text, columns, keep_blanks=keep_blanks))
    assert "put together" in topology.warnings[-1]
    assert replace(topology, warnings=()) == replace(node(text), warnings=())


@pytest.mark.parametrize("columns", [80, 100])
def test_a_broken_matrix_that_lost_a_piece_is_refused(columns: int) -> None:
    lines = broken(rendered.topo_m(WIDE, raw=False).expandtabs(8), columns, keep_blanks=False).splitlines()
    for lost in range(1, 16):
        with pytest.raises(FormatError):
            node("\n".join(lines[:lost] + lines[lost + 1 :]) + "\n")
