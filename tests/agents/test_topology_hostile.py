"""Whatever tools print, a scan ends with a document that an API server can read, and the agent goes on."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import node_outputs as outputs
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.agents.topology.documents import document_of, health_of
from kopt.agents.topology.health import boards_of, evaluate, measure
from kopt.agents.topology.labels import LabelSettings, labels_of
from kopt.agents.topology.scanning import Scanner, ScanResult
from kopt.agents.topology.sources import NAMES

CARDS = {"mlx5_0": 0}
REAL = {
    "nvidia-smi-topo": outputs.topo_m(4, {(0, 1): 2}, CARDS),
    "nvidia-smi-nvlink": outputs.nvlink(4, {(0, 1): 2}),
    "nvidia-smi-list": outputs.smi_list(4),
    "nvidia-smi-q": outputs.query(4, cluster="3f2b8a60-1111-4222-8333-444455556666"),
    "kfd": outputs.kfd(4),
    "infiniband": outputs.infiniband(CARDS),
    "pci": outputs.pci_devices(4, cards=CARDS),
    "driver-versions": '{"nvidia": "580.1"}',
    "amd-smi-version": '[{"version": "25.1", "rocm_version": "6.4"}]',
    "nvml": json.dumps(
        {
            "gpus": [{"index": 0, "pci": outputs.pci(0)}],
            "pcie": {outputs.pci(0): {"width": 16, "generation": 4}},
        }
    ),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=12)
            | st.sampled_from(
                [
                    "gpus",
                    "links",
                    "pcie",
                    "versions",
                    "index",
                    "width",
                    "mlx5_0/device",
                    "0000:1a:00.0/path",
                    "nodes/0/gpu_id",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


class Given:
    """A collector with this text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self._text = name, text

    async def collect(self) -> str:
        return self._text


@st.composite
def damaged(draw: Callable[..., Any]) -> dict[str, str]:
    """Outputs of one machine; some are cut, spliced, mixed up, or something else altogether."""
    found = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True)):
        text = REAL.get(name, "")
        match draw(st.integers(0, 5)):
            case 0:
                text = text[: draw(st.integers(0, len(text)))]
            case 1:
                at = draw(st.integers(0, len(text)))
                text = text[:at] + draw(st.text(max_size=30)) + text[at:]
            case 2:
                text = REAL[draw(st.sampled_from(sorted(REAL)))]
            case 3:
                text = json.dumps(draw(JSON))
            case 4:
                text = text.replace(
                    draw(st.sampled_from("0123456789")), draw(st.sampled_from(["", "9", "-1", "9" * 5000]))
                )
        found[name] = text
    return found


def looked_at(texts: dict[str, str]) -> ScanResult:
    return asyncio.run(Scanner([Given(name, text) for name, text in texts.items()]).scan())


def written(found: ScanResult) -> dict[str, Any]:
    assert found.topology is not None
    now, boards = measure(found.topology, found.details), boards_of(found.topology)
    first = document_of("n", "u", found, evaluate(now, boards, None, 0, {}, 600), None, 0)
    again = evaluate(now, boards, health_of(first), 1, {}, 600)
    labels_of(found.topology, found.details.domain, found.fabric, "n", {}, LabelSettings())
    return document_of("n", "u", found, again, first, 1)


@settings(max_examples=examples(300))
@given(damaged())
def test_a_scan_ends_with_what_could_be_read(texts: dict[str, str]) -> None:
    found = looked_at(texts)
    assert len(found.readings) == len(texts)
    if found.topology is not None:
        json.dumps(written(found), allow_nan=False)


def test_what_is_damaged_here_is_read_when_it_is_whole() -> None:
    texts = {name: text for name, text in REAL.items() if name != "kfd"}
    found = looked_at(texts)
    assert [one.name for one in found.readings if one.problem is not None] == []
    assert len(written(found)["spec"]["links"]) == 6


def test_nothing_that_is_nested_or_long_without_end_stops_a_scan() -> None:
    for text in ("[" * 100_000, '{"gpus":' * 50_000, '{"gpus": [{"index": 1e999}]}', '{"gpus": [{"index": NaN}]}'):
        found = looked_at(dict.fromkeys(NAMES, text) | {"nvidia-smi-list": outputs.smi_list(2)})
        assert found.topology is not None
        assert len(found.topology.gpus) == 2


def test_an_output_under_the_name_of_another_tool_stops_no_scan() -> None:
    for name in NAMES:
        for text in REAL.values():
            found = looked_at({"nvidia-smi-topo": REAL["nvidia-smi-topo"], name: text})
            if found.topology is not None:
                json.dumps(written(found), allow_nan=False)
