"""Network cards of one node: ``ibv_devinfo``, ``ibstat``, ``rdma link``, ``ibdev2netdev``; and ``ib_write_bw``.

Sources: libibverbs' ``examples/devinfo.c``, infiniband-diags' ``ibstat.c``, iproute2's ``rdma/link.c``.
"""

import re
from dataclasses import dataclass, field

from kopt.core.hardware.collectives import PortTest, PortTests
from kopt.core.hardware.node_topology import NodeTopology, TopologyNic
from kopt.core.units import Bytes
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import number_of, pci_address

DEVINFO_TOOL, IBSTAT_TOOL, LINK_TOOL, NETDEV_TOOL, WRITE_TOOL = (
    "ibv_devinfo",
    "ibstat",
    "rdma link",
    "ibdev2netdev",
    "ib_write_bw",
)

_HCA = re.compile(r"hca_id:\s*(\S+)\s*$")
_CA = re.compile(r"CA '([\w.-]+)'\s*$")
_PORT = re.compile(r"\s+port:\s*(\d{1,3})\s*$|\s*Port (\d{1,3}):\s*$")
_FIELD = re.compile(r"\s+([A-Za-z_][\w ]*?):\s+(\S.*?)\s*$")
_LINK = re.compile(r"(?:\d+/\d+: |link )([\w.-]+)/(\d{1,3}):? .*?\bstate (\w+) physical_state (\w+)(?: netdev (\S+))?")
_LINK_LIKE = re.compile(r"link [\w.-]+/\d+\b|\d+/\d+: [\w.-]+/\d+:")
_NETDEV = re.compile(
    r"\s*(?:([0-9a-f:.]{7,17}) )?([\w.-]+) (?:\(.*?\) .*? )?port (\d{1,3}) (?:\((\w+)\) ?)?==> (\S+) \((Up|Down)\)\s*$"
)
_NETDEV_LIKE = re.compile(r".*\bport \d+.*==>")
_TEST = re.compile(r"\s*(RDMA_Write|RDMA_Read|Send) (?:Bidirectional )?(?:BW|Latency) Test\s*$")
_LAYERS = ("InfiniBand", "Ethernet", "IB", "Unspecified", "Unknown")
_LAYER_LINE = re.compile(rf"\s+[Ll]ink[_ ]layer:\s+(?:{'|'.join(_LAYERS)})$")
_WIDTH = re.compile(r"(\d{1,2})X")
_SPEED = re.compile(r"([\d.]{1,8}) Gbps")


@dataclass
class _Card:
    name: str
    line: Line
    properties: dict[str, str] = field(default_factory=dict)
    ports: list[tuple[int, dict[str, str]]] = field(default_factory=list)


def recognises(source: Source) -> bool:
    return any(source.has(item) for item in (_HCA, _CA, _LINK_LIKE, _NETDEV_LIKE, _TEST))


def parse(source: Source) -> NodeTopology | PortTests:
    """Raises FormatError."""
    if source.has(_TEST):
        return _tests(source)
    if source.has(_HCA) or source.has(_CA):
        return _cards(source)
    return _rows(source)


def _cards(source: Source) -> NodeTopology:
    cards: list[_Card] = []
    last = source.lines[0]
    is_devinfo = source.has(_HCA)
    for line in source.lines:
        if match := (_HCA if is_devinfo else _CA).match(line.text):
            cards.append(_Card(match[1], line))
        elif cards and (_CA if is_devinfo else _HCA).match(line.text):
            # The other tool's output follows.
            break
        elif cards and (port := _PORT.match(line.text)):
            cards[-1].ports.append((int(port[1] or port[2]), {}))
        elif cards and (entry := _FIELD.match(line.text)):
            properties = cards[-1].ports[-1][1] if cards[-1].ports else cards[-1].properties
            name = entry[1].lower().replace(" ", "_")
            if name in properties and name in ("state", "rate", "link_layer"):
                raise line.error(f"{entry[1]} stands twice")
            properties[name] = entry[2]
        else:
            continue
        last = line
    if not _LAYER_LINE.match(last.text):
        unbroken(last, "the last line of a card")
    if len({card.name for card in cards}) != len(cards):
        raise cards[0].line.error("a card stands twice; give one output")
    nics = tuple([nic for card in cards for nic in _ports(card, is_devinfo)])
    return NodeTopology("", (), (), nics, tool=DEVINFO_TOOL if is_devinfo else IBSTAT_TOOL)


def _ports(card: _Card, is_devinfo: bool) -> list[TopologyNic]:
    stated = card.properties.get("phys_port_cnt" if is_devinfo else "number_of_ports", "")
    if stated != str(len(card.ports)) or [n for n, _ in card.ports] != list(range(1, len(card.ports) + 1)):
        raise card.line.error(
            f"{card.name} says that it has {stated or 'no'} ports, but {len(card.ports)} follow: lines are missing"
        )
    ports = []
    for number, properties in card.ports:
        state, layer = properties.get("state", ""), properties.get("link_layer", "")
        if not state or layer not in _LAYERS:
            raise card.line.error(f"port {number} of {card.name} lacks its state or link layer")
        name = f"{card.name}:{number}" if len(card.ports) > 1 else card.name
        state = re.sub(r"^PORT_| \(\d+\)$", "", state).upper()
        ports.append(TopologyNic(name, "", None, _speed(card, properties), state, layer))
    return ports


def _speed(card: _Card, properties: dict[str, str]) -> float | None:
    if "rate" in properties:
        return number_of(properties["rate"], f"the rate of {card.name}", card.line.number) or None
    width, speed = _WIDTH.match(properties.get("active_width", "")), _SPEED.match(properties.get("active_speed", ""))
    if width is None or speed is None:
        return None
    return int(width[1]) * number_of(speed[1], f"the speed of {card.name}", card.line.number)


def _rows(source: Source) -> NodeTopology:
    rows: list[tuple[str, int, TopologyNic]] = []
    is_link = source.has(_LINK_LIKE)
    for line in source.lines:
        like = (_LINK_LIKE if is_link else _NETDEV_LIKE).match(line.text)
        if like is None:
            continue
        unbroken(line, "the last line of a port")
        if is_link:
            match = _LINK.match(line.text)
            nic = match and TopologyNic(match[1], state=match[3], interface=match[5] or "")
            key = (match[1], int(match[2])) if match else ("", 0)
        else:
            match = _NETDEV.match(line.text)
            bus = pci_address(match[1], line.number) if match and match[1] else ""
            nic = match and TopologyNic(match[2], bus, None, None, match[4] or match[6].upper(), "", match[5])
            key = (match[2], int(match[3])) if match else ("", 0)
        if nic is None:
            raise line.error("this is no whole line of a port")
        if key in [(card, port) for card, port, _ in rows]:
            raise line.error(f"port {key[1]} of {key[0]} stands twice")
        rows.append((*key, nic))
    names = [card for card, _, _ in rows]
    nics = tuple(
        [
            TopologyNic(
                f"{card}:{port}" if names.count(card) > 1 else card, nic.pci, None, None, nic.state, "", nic.interface
            )
            for card, port, nic in rows
        ]
    )
    return NodeTopology("", (), (), nics, tool=LINK_TOOL if is_link else NETDEV_TOOL)


_DEVICE = re.compile(r".*\bDevice\s*:\s*(\S+)")
_LAYER = re.compile(r".*\bLink type\s*:\s*(\S+)")
_HEAD = re.compile(
    r"\s*#bytes\s+#iterations\s+BW peak\[(Gb/sec|MB/sec|MiB/sec)\]\s+BW average\[(?:Gb/sec|MB/sec|MiB/sec)\]"
)
_FIGURES = re.compile(r"\s*(\d{1,12})\s+(\d{1,12})\s+([\d.]{1,15})\s+([\d.]{1,15})(?:\s+[\d.]{1,15})?\s*$")
_COLUMN = re.compile(r"#bytes|#iterations|BW peak|BW average|MsgRate")
_TO_GBIT = {"Gb/sec": 1.0, "MB/sec": 0.008388608, "MiB/sec": 0.008388608}


def _tests(source: Source) -> PortTests:
    operations = [(line, match[1]) for line, match in source.matching(_TEST)]
    if len(operations) > 1:
        raise operations[1][0].error("a second test begins here; give one log")
    device = next((match[1] for _, match in source.matching(_DEVICE)), "")
    layer = next((match[1] for _, match in source.matching(_LAYER)), "")
    unit, columns = "", 0
    port_tests: list[PortTest] = []
    for line in source.lines:
        if head := _HEAD.match(line.text):
            unit, columns = head[1], len(_COLUMN.findall(line.text))
        elif unit and (row := _FIGURES.match(line.text)):
            unbroken(line, "the last row")
            if len(line.tokens()) != columns or any(int(row[1]) == port_test.bytes for port_test in port_tests):
                raise line.error("this row has too few figures, or stands twice")
            peak, mean = (number_of(row[n], "a bandwidth", line.number) * _TO_GBIT[unit] for n in (3, 4))
            if mean > peak * 1.001 + 0.01 and peak:
                raise line.error(f"the average of {row[4]} is above the peak of {row[3]}")
            port_tests.append(PortTest(device, operations[0][1], Bytes(int(row[1])), int(row[2]), peak, mean, layer))
        elif unit and re.match(r"\s*\d+\s+\d", line.text):
            raise line.error("this is no row of figures")
    if not port_tests or not device:
        message = "the test has no result, or does not name its device: the log is cut"
        raise FormatError(message, len(source.lines))
    return PortTests(WRITE_TOOL, tuple(port_tests))


PARSER = TextParser(
    (DEVINFO_TOOL, IBSTAT_TOOL, LINK_TOOL, NETDEV_TOOL, WRITE_TOOL), recognises, parse, is_expected=True
)
