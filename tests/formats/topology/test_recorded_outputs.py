"""Every recorded output reproduces the facts that are known of it, or is refused where it is damaged."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kopt.core.hardware.collectives import CollectiveGraphs, CollectiveLog
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import NodeTopology
from kopt.formats.topology import FormatError, Parsed, parse
from kopt.formats.topology.exporters import prometheus as exporters
from kopt.formats.topology.nccl import topo as nccl_topo
from kopt.formats.topology.text import source_of
from kopt.formats.topology.xml import read

REFUSED = {
    "nvidia_topo_m/cap_nvidia-geforce-rtx-2080-super__591.86_1.txt": "an error message",
    "dcgm_exporter/aicr_evidence_3.prom": "an answer of Prometheus, no exposition",
    "dcgm_exporter/aicr_evidence_4.prom": "an answer of Prometheus, no exposition",
    "dcgm_exporter/dcgm_readme_4.prom": "the exporter's configuration",
    "rdma_tools/ib-write-bw-empty_1.txt": "a log without a result",
    "nccl_tests_log/gpuop_phase2-pass_1.log": "its average is not that of its rows, some of which were cut out",
    "nccl_tests_log/gpuop_phase2-failed-no-marker_1.log": "a job that printed nothing",
}
"""Not marked in the index, but nothing that may be taken for a whole output."""


@pytest.fixture(scope="module")
def recorded() -> list[tuple[Mapping[str, Any], str]]:
    """Records of the index with their texts; absent, the test is skipped, or fails where KOPT_REQUIRE_DATA=1."""
    root = os.environ.get("KOPT_DATA_DIR")
    folder = Path(root) / "topology" if root else None
    if folder is None or not (folder / "index.jsonl").exists():
        message = "KOPT_DATA_DIR does not name a folder with topology/index.jsonl"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    records = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    return [(record, (folder / record["file"]).read_bytes().decode(errors="replace")) for record in records]


def test_every_recorded_output(recorded: list[tuple[Mapping[str, Any], str]]) -> None:
    wrong, seen = [], Counter[str]()
    for record, text in recorded:
        want = record.get("expected") or {}
        try:
            found: Parsed | None = parse(text, yaml.safe_load)
        except FormatError:
            found = None
        is_damaged = bool(want.get("incomplete") or want.get("error")) or record["file"] in REFUSED
        seen["refused" if found is None else record["tool"]] += 1
        if (found is None) != is_damaged:
            wrong.append(f"{record['file']}: {'refused' if found is None else 'taken'}")
        elif found is not None:
            assert json.dumps(found.to_dict())
            wrong += [f"{record['file']}: {one}" for one in _differences(record["tool"], want, found, text)]
    assert not wrong, "\n".join(wrong)
    assert len(seen) == 28, "27 tools, and what is refused"


def test_a_recorded_matrix_cut_at_any_line_is_refused_or_equal(recorded: list[tuple[Mapping[str, Any], str]]) -> None:
    tools = ("nvidia_topo_m", "rocm_showtopo", "amd_smi", "nccl_xml", "rocm_showtopo_json", "gpustack_json")
    for record, text in recorded:
        if record["tool"] not in tools:
            continue
        whole = _links(text)
        lines = text.splitlines(keepends=True)
        for end in range(1, len(lines)) if whole else ():
            assert _links("".join(lines[:end])) in (None, whole), f"{record['file']}, cut behind line {end}"


def _links(text: str) -> object | None:
    try:
        found = parse(text)
    except FormatError:
        return None
    return (len(found.gpus), found.links) if isinstance(found, NodeTopology) and found.links else None


def _differences(tool: str, want: Mapping[str, Any], found: Parsed, text: str) -> Iterator[str]:
    told = dict(_facts(tool, want, found, text))
    for name, value in told.items():
        if name in want and value != want[name]:
            yield f"{name} is {str(value)[:200]}, not {str(want[name])[:200]}"


def _facts(tool: str, want: Mapping[str, Any], found: Parsed, text: str) -> Iterator[tuple[str, Any]]:
    """What was read, in the words of the index."""
    if isinstance(found, CollectiveGraphs):
        yield from (("n_graphs", len(found.graphs)), ("n_channels", sum(len(one.channels) for one in found.graphs)))
    elif isinstance(found, CollectiveLog):
        yield from (("n_tables", len(found.runs)), ("ranks", [len(run.ranks) for run in found.runs]))
        yield "rows", [len({id(row) for row in run.rows if not row.in_place}) for run in found.runs]
        yield "avg_bus", [run.average_busbw_gigabytes_per_s for run in found.runs]
    elif isinstance(found, Fabric):
        yield from (("n_switch", len(found.switches)), ("n_ca", len(found.hosts)))
    elif isinstance(found, NodeTopology):
        yield from _of_node(tool, want, found)
        if tool == "nccl_xml":
            yield from _of_xml(text, found)
        if tool in ("dcgm_exporter", "amd_exporter"):
            yield "n_series", len(exporters.read(source_of(text)))


def _of_node(tool: str, want: Mapping[str, Any], found: NodeTopology) -> Iterator[tuple[str, Any]]:
    gpus, links = found.gpus, found.links
    # A table of MIG instances was held against the lines of a list, of which it has none.
    if not (tool == "nvidia_smi_L" and found.tool == "nvidia-smi mig"):
        yield from (("n_gpus", len(gpus)), ("mig_devices", [one for gpu in gpus for one in gpu.instances]))
    if tool in ("amd_smi", "dcgm_exporter"):
        yield "gpus", len(gpus) if tool == "amd_smi" else [str(gpu.index) for gpu in gpus]
    yield from (("n_nics", len(found.nics)), ("n", len(found.nics)), ("n_gpu_blocks", len(gpus)))
    yield from (("n_hca", len(found.nics)), ("gpu_nodes", len(gpus)), ("n_rows", len(gpus)), ("n_total", len(gpus)))
    kinds = {f"GPU{one.a}-GPU{one.b}": f"NV{one.count}" if one.count else one.type.value for one in links}
    kinds |= {} if links else {f"GPU{one.a}-GPU{one.b}": one.status for one in found.peers}
    yield from (("pairs", kinds), ("gpu_pair_link_counts", dict(Counter(kinds.values()))))
    yield from (
        (name, {str(key): count for key, count in Counter(values).items()})
        for name, values in (
            ("weight_values", [one.weight for one in links]),
            ("hops_values", [one.hops for one in links]),
            ("type_values", [one.type.value for one in links]),
            ("weights", [one.weight for one in links]),
            ("hops", [one.hops for one in links]),
            ("types", [one.type.value for one in links]),
        )
    )
    if want.get("numa_node"):
        yield "numa_node", {str(gpu.index): str(gpu.numa) for gpu in gpus}
    yield from _of_cards(want, found)
    yield from _numa(want, found)
    yield "compute", sorted({gpu.partition.split("/")[0] for gpu in gpus} - {""})
    yield "product", [gpu.name for gpu in gpus]
    yield from (("attached", [str(len(gpus))]), ("mig", any(gpu.partition == "MIG" for gpu in gpus)))
    yield from (("memory", sorted({gpu.partition.split("/")[-1] for gpu in gpus} - {""})),)
    yield "mig_profiles", sorted({one for gpu in gpus for one in gpu.instances})
    if not found.warnings:
        speeds = {f"{gpu.port_gigabytes_per_s:g}" for gpu in gpus if gpu.port_gigabytes_per_s}
        yield from (("n_links", sum(gpu.ports or 0 for gpu in gpus)), ("link_speeds", sorted(speeds)))
    named = [device.name for device in found.devices]
    yield "nvidia_lines", sum("NVIDIA" in name for name in named)
    yield from (
        ("nvidia", sum("NVIDIA" in name for name in named)),
        ("mellanox", sum("Mellanox" in name for name in named)),
    )


def _of_cards(want: Mapping[str, Any], found: NodeTopology) -> Iterator[tuple[str, Any]]:
    order = ["PIX", "PXB", "PHB", "NODE", "SOC", "SYS"]
    cards = [nic.name for nic in found.nics]
    # The index names cards by their columns; the topology by the legend of these, where there is one.
    columns = [name for name in want.get("columns", ()) if re.match(r"NIC|mlx", name)]
    nearest: dict[str, list[str]] = {}
    for gpu in found.gpus:
        ways = {one.nic: order.index(one.type) for one in found.nic_affinity if one.gpu == gpu.index}
        closest = min(ways.values(), default=0)
        nearest[f"GPU{gpu.index}"] = [
            name for name, nic in zip(columns, cards, strict=False) if ways.get(nic) == closest
        ]
    yield "nearest_nics", nearest
    if cards:
        yield "nic_legend", dict(zip(columns, cards, strict=False))
    yield "states", dict(Counter(f"4: {nic.state}" for nic in found.nics))
    rates = Counter(nic.gbit_per_s for nic in found.nics)
    yield (
        "rates",
        {text: count for text, count in want.get("rates", {}).items() if rates[float(text.split()[0])] == count},
    )


def _numa(want: Mapping[str, Any], found: NodeTopology) -> Iterator[tuple[str, Any]]:
    """Single NUMA nodes; an excerpt's were read in other columns by the index."""
    cells = {name: one.get("NUMA Affinity") or "" for name, one in want.get("affinity", {}).items()}
    if all(re.fullmatch(r"\d?|N/A", cell) for cell in cells.values()):
        here = {f"GPU{gpu.index}": "" if gpu.numa is None else str(gpu.numa) for gpu in found.gpus}
        wrong = [name for name, cell in cells.items() if here[name] != cell.replace("N/A", "")]
        yield "affinity", wrong or want.get("affinity")


def _of_xml(text: str, found: NodeTopology) -> Iterator[tuple[str, Any]]:
    """Counts of elements, which the topology does not have, as the parser reads them."""
    elements = list(read(source_of(text), nccl_topo.ROOT).walk())
    tags = Counter(one.tag for one in elements)
    yield from (("n_gpu_elements", len(found.gpus)), ("n_net", len(found.nics)), ("n_pci", len(found.devices)))
    yield from (("n_cpu", tags["cpu"]), ("n_nvlink_elems", tags["nvlink"]), ("n_xgmi_elems", tags["xgmi"]))
    for tag in ("nvlink", "xgmi"):
        yield f"{tag}_counts", dict(Counter(one.attributes["count"] for one in elements if one.tag == tag))
    yield "numaids", sorted({one.attributes["numaid"] for one in elements if one.tag == "cpu"})
    speeds = Counter(str(round(nic.gbit_per_s * 1000)) for nic in found.nics if nic.gbit_per_s)
    yield "net_speeds_mbps", dict(speeds)
    yield "pci_gpu_class_0x0302", sum(device.kind == "gpu" for device in found.devices)
    yield "pci_net_class_0x02", sum(device.kind == "nic" for device in found.devices)
    chips = {gpu.name.removeprefix("sm_") for gpu in found.gpus}
    yield "gpu_sm_or_gcn", sorted(chips) if "gfx950" in chips else sorted(one.removeprefix("gfx") for one in chips)
    yield "ranks", sorted(int(one.attributes["rank"]) for one in elements if one.tag == "gpu")
