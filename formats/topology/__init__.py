"""Outputs of topology tools as core types: one file per tool, found by what the text looks like.

In: text, or a folder of ``/sys`` as paths and contents. Out: ``NodeTopology`` (the part of a node that the tool
shows), ``Fabric``, ``CollectiveLog``, ``CollectiveGraphs`` or ``PortTests``. Decoration around an output is taken off;
an output that is cut, wrapped or contradicts itself raises ``FormatError`` with its line, and nothing is guessed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from kopt.core.collectives import CollectiveGraphs, CollectiveLog, PortTests
from kopt.core.fabric import Fabric
from kopt.core.topology import NodeTopology, TopologyError
from kopt.formats.topology import (
    amd_smi_gpus,
    amd_smi_topo,
    documents,
    exporters,
    gpustack,
    ibnetdiscover,
    lspci,
    nccl_graph,
    nccl_tests,
    nccl_topo,
    nvidia_full,
    nvidia_list,
    nvidia_mig,
    nvidia_query,
    nvidia_table,
    nvidia_topo,
    rdma,
    rocm_gpus,
    rocm_topo,
    rocm_topo_json,
    sysfs,
    topograph,
)
from kopt.formats.topology.merge import merged
from kopt.formats.topology.text import LONGEST_LINE, FormatError, Source, short_lines, source_of

A = TypeVar("A")
T = TypeVar("T")
Parsed = NodeTopology | Fabric | CollectiveLog | CollectiveGraphs | PortTests

_TEXTS: tuple[ModuleType, ...] = (
    nccl_tests, rocm_topo, amd_smi_topo, nvidia_topo, nvidia_full, nvidia_table, nvidia_mig,
    nvidia_list, amd_smi_gpus, rocm_gpus, ibnetdiscover, rdma, lspci, exporters, nvidia_query,
)  # fmt: skip
"""In the order in which they are asked: what tells of links comes before what lists devices."""
_JSON: tuple[tuple[Callable[[documents.Document], bool], Callable[[documents.Document], NodeTopology]], ...] = (
    (rocm_topo_json.recognises, rocm_topo_json.parse),
    (amd_smi_topo.recognises_json, amd_smi_topo.parse_json),
    (gpustack.recognises, gpustack.parse),
    (amd_smi_gpus.recognises_json, amd_smi_gpus.parse_json),
    (rocm_gpus.recognises_json, rocm_gpus.parse_json),
)
_KNOWN = (
    "nvidia-smi (topo, nvlink, mig, -q, -L, csv), rocm-smi, amd-smi, NCCL's XML and tests, KFD, PCI and InfiniBand in "
    "/sys, lspci, ibv_devinfo, ibstat, rdma link, ibdev2netdev, ib_write_bw, ibnetdiscover, dcgm-exporter, AMD's "
    "exporter, gpustack-runtime, topograph"
)


def parse(text: str, load_yaml: Callable[[str], Any] | None = None) -> Parsed:
    """The output of one tool. ``load_yaml`` decodes YAML safely, for topograph's models.

    Raises FormatError.
    """
    source = source_of(text)
    if documents.looks_like(source):
        return _checked(_json, source)
    for parser in (nccl_topo, nccl_graph):
        if parser.recognises(source):
            found: Parsed = _checked(parser.parse, source)
            return found
    if any(len(line.text) > LONGEST_LINE for line in source.lines) and documents.begins(source):
        return _checked(_json, source)
    short_lines(source)
    known = [parser for parser in _TEXTS if parser.recognises(source)]
    if known:
        return _with_others(_checked(known[0].parse, source), known[1:])
    if load_yaml is not None and topograph.recognises(source):
        return _checked(topograph.parse, load_yaml(topograph.document(source)))
    if documents.begins(source):
        return _checked(_json, source)
    raise unknown(source)


def parse_tree(tree: Mapping[str, str]) -> NodeTopology:
    """A folder of ``/sys`` by paths. Raises FormatError."""
    return _checked(sysfs.parse, tree)


def unknown(source: Source) -> FormatError:
    """What to say of text that no parser knows."""
    first = next((line.text.strip() for line in source.lines if line), "")
    return FormatError(f"not the output of a tool that is known here: {first[:80]!r}; known are {_KNOWN}", 1)


def _checked(parser: Callable[[A], T], given: A) -> T:
    """What a parser finds; a topology that contradicts itself is an output that does."""
    try:
        return parser(given)
    except TopologyError as error:
        raise FormatError(str(error)) from error


def _json(source: Source) -> NodeTopology:
    document = documents.decode(source)
    value = document.value
    for recognises, parser in _JSON:
        if recognises(document):
            return parser(document)
    is_tree = isinstance(value, dict) and bool(value) and all(isinstance(one, str) for one in value.values())
    if is_tree and sysfs.recognises(value):
        return sysfs.parse(value)
    if isinstance(value, dict) and "resultType" in str(value.get("data", ""))[:80]:
        raise document.error("an answer of Prometheus; give the text of the exporter itself")
    raise document.error("JSON, but not of a tool that is known here")


def _with_others(found: Parsed, others: list[ModuleType]) -> Parsed:
    """More outputs in the text are told; the first one was read."""
    if not isinstance(found, NodeTopology) or found.tool == rocm_topo.TOOL:
        return found
    names = [getattr(one, "TOOL", "") for one in others if one not in (rocm_gpus, exporters, rdma)]
    if not any(names):
        return found
    told = f"the text also looks like that of {', '.join(filter(None, names))}: give it in a file of its own"
    return replace(found, warnings=(*found.warnings, told))


__all__ = ["FormatError", "Parsed", "merged", "parse", "parse_tree"]
