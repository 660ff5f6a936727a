"""NCCL's and RCCL's graph XML (``NCCL_GRAPH_DUMP_FILE``): the channels that the search found for each pattern."""

import math

from kopt.core.hardware.collectives import CollectiveGraph, CollectiveGraphs
from kopt.formats.topology.parser import XmlParser
from kopt.formats.topology.text import Source
from kopt.formats.topology.xml import Element, begins, read

TOOL = "nccl graph xml"
ROOT = "graphs"


def recognises(source: Source) -> bool:
    return begins(source, ROOT)


def parse(source: Source) -> CollectiveGraphs:
    """Raises FormatError, also when a graph does not hold as many channels as it says."""
    root = read(source, ROOT)
    graphs = []
    for graph in root.children:
        if graph.tag != "graph":
            raise graph.error("stands where a <graph> is expected")
        graphs.append(_graph(graph))
    if len({collective_graph.id for collective_graph in graphs}) != len(graphs) or not graphs:
        raise root.error("holds no graph, or one id twice")
    return CollectiveGraphs(TOOL, tuple(graphs))


def _graph(graph: Element) -> CollectiveGraph:
    number, pattern, count = graph.whole("id"), graph.whole("pattern"), graph.whole("nchannels")
    if number is None or pattern is None or count is None:
        raise graph.error("lacks its id, pattern or nchannels")
    channels = tuple([_channel(element) for element in graph.children])
    if len(channels) != count:
        raise graph.error(f"holds {len(channels)} channels, but says nchannels={count}")
    devices = {tuple(sorted(name if name.startswith("gpu") else "net" for name in channel)) for channel in channels}
    if len(devices) > 1:
        raise graph.error("has channels of different devices")
    return CollectiveGraph(
        number,
        pattern,
        _speed(graph, "speedintra"),
        _speed(graph, "speedinter"),
        graph.attributes.get("typeintra", ""),
        graph.attributes.get("typeinter", ""),
        channels,
    )


def _channel(channel: Element) -> tuple[str, ...]:
    if channel.tag != "channel":
        raise channel.error("stands where a <channel> is expected")
    result = []
    for element in channel.children:
        text = element.attributes.get("dev", "")
        try:
            number = int(text, 16 if text.lower().startswith("0x") else 10)
        except ValueError:
            number = -1
        if element.tag not in ("gpu", "net") or number < 0:
            raise element.error(f"with dev={text[:40]!r} is neither a GPU nor a network card")
        result.append(f"{element.tag} {number}")
    return tuple(result)


def _speed(graph: Element, name: str) -> float:
    text = graph.attributes.get(name, "")
    try:
        result = float(text)
    except ValueError:
        result = math.nan
    if not 0 <= result < 1e6:
        raise graph.error(f"{name}={text[:40]!r} is no speed")
    return result


PARSER = XmlParser((TOOL,), recognises, parse)
