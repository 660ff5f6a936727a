"""Whatever happens to an output: it is refused, or what is read is what was printed. Never another topology."""

import json
import re
from contextlib import suppress

import pytest
import topology_outputs as rendered
from hypothesis import given
from hypothesis import strategies as st
from topology_outputs import PRINTERS, TABLES, Machine, Printer, machine, read

from kopt.core.hardware.collectives import CollectiveLog
from kopt.core.hardware.fabric import Fabric
from kopt.formats.topology import FormatError, Parsed, parse, parse_tree

machines = st.builds(machine, st.integers(0, 1 << 20), st.integers(2, 8), st.integers(0, 3))


def links(text: str) -> object | None:
    """GPU to GPU only: what a truncation may not change."""
    found = read(text)
    return found[:2] if isinstance(found, tuple) else None


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines)
def test_what_a_tool_prints_is_read_whole(printer: Printer, m: Machine) -> None:
    found = read(printer(m))
    assert isinstance(found, tuple)
    assert found[0] == tuple(range(m.gpus))
    if printer is rendered.topo_m:
        names = {(one[0], one[1]): f"NV{one[3]}" if one[3] else one[2].value for one in found[1]}
        assert names == {(a, b): m.way[a][b] for a in range(m.gpus) for b in range(a + 1, m.gpus)}


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines, data=st.data())
def test_a_cut_output_is_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    text = printer(m)
    assert links(text[: data.draw(st.integers(0, len(text) - 1))]) in (None, links(text))


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines, data=st.data())
def test_a_lost_line_is_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    lines = printer(m).splitlines(keepends=True)
    lost = data.draw(st.integers(0, len(lines) - 1))
    assert links("".join(lines[:lost] + lines[lost + 1 :])) in (None, links("".join(lines)))


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines, data=st.data())
def test_a_line_that_stands_twice_is_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    lines = printer(m).splitlines(keepends=True)
    twice = data.draw(st.integers(0, len(lines) - 1))
    assert read("".join(lines[: twice + 1] + lines[twice:])) in (None, read("".join(lines)))


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines, data=st.data())
def test_a_lost_word_is_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    text = printer(m)
    word = data.draw(st.sampled_from(list(re.finditer(r"[^\s<>\"=/,{}\[\]:]+", text))))
    assert links(text[: word.start()] + text[word.end() :]) in (None, links(text))


@pytest.mark.parametrize("printer", TABLES)
@given(m=machines, data=st.data())
def test_a_changed_cell_is_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    text = printer(m)
    words = list(re.finditer(r"\S+", text))
    word, other = data.draw(st.sampled_from(words)), data.draw(st.sampled_from(words))
    assert links(text[: word.start()] + other[0] + text[word.end() :]) in (None, links(text))


@pytest.mark.parametrize("printer", TABLES)
@given(m=machines, data=st.data())
def test_lines_in_another_order_are_refused_or_equal(printer: Printer, m: Machine, data: st.DataObject) -> None:
    lines = printer(m).splitlines(keepends=True)
    a, b = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    moved = list(lines)
    moved[a], moved[b] = moved[b], moved[a]
    assert links("".join(moved)) in (None, links("".join(lines)))


@pytest.mark.parametrize("printer", PRINTERS)
@given(m=machines)
def test_two_outputs_in_one_are_refused(printer: Printer, m: Machine) -> None:
    assert read(printer(m) * 2) is None


@pytest.mark.parametrize("printer", TABLES[:3])
@given(m=machines, width=st.integers(20, 60))
def test_a_wrapped_table_is_refused(printer: Printer, m: Machine, width: int) -> None:
    lines = printer(m).splitlines()
    wrapped = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
    assert links("\n".join(wrapped) + "\n") in (None, links(printer(m)))


_TELLING = """GPU0|GPU1|GPU 0:|NIC0|X|NV12|SYS|PIX|OK|NS|0|15|XGMI|PCIE|N/A|Legend:|CPU Affinity|NUMA Affinity|{|}|[|]
=== Weight between two GPUs ===|End of ROCm SMI Log|WEIGHT TABLE:|0000:05:00.0|<system version="1">|</system>|[1]|<gpu
<cpu numaid="0">|"gpu": 0,|Link 0: 25 GB/s|+---+|# nThread 1 nGpus 1|# Rank 0|Switch 1 "S-0"|GPU: 0|switches:|blocks:
Bridge: x|hca_id:|nodes/0/properties|index, name|DCGM_FI_DEV_FB_USED{|Attached GPUs : 1"""
WORDS = (*_TELLING.replace("\n", "|").split("|"), "|", "\t", "\n", "\x1b[4m")


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join),
        st.lists(st.sampled_from(WORDS), max_size=40).map("\n".join),
    )
)
def test_any_text_is_refused_or_read(text: str) -> None:
    with suppress(FormatError):
        found: Parsed = parse(text)
        assert json.dumps(found.to_dict())


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with suppress(FormatError):
        parse(data.decode("utf-8", errors="replace"))


@given(
    st.dictionaries(st.sampled_from([*rendered.kfd(machine(1, 2)), "mlx5_0/ports/1/rate", "x"]), st.text(max_size=60))
)
def test_any_folder_is_refused_or_read(tree: dict[str, str]) -> None:
    with suppress(FormatError):
        parse_tree(tree)


@given(data=st.data(), ranks=st.integers(2, 12))
def test_a_damaged_log_of_collectives_is_refused_or_equal(data: st.DataObject, ranks: int) -> None:
    text = rendered.nccl_tests(ranks)
    lines = text.splitlines(keepends=True)
    n = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(text) - 1))
    whole = parse(text)
    assert isinstance(whole, CollectiveLog)
    for damaged in ("".join(lines[:n] + lines[n + 1 :]), "".join(lines[: n + 1] + lines[n:]), text[:cut]):
        try:
            found = parse(damaged)
        except FormatError:
            continue
        assert isinstance(found, CollectiveLog)
        assert [run.rows for run in found.runs] == [run.rows for run in whole.runs]
        assert [run.ranks for run in found.runs] == [run.ranks for run in whole.runs]


@given(data=st.data())
def test_a_damaged_fabric_is_refused_or_equal(data: st.DataObject) -> None:
    text = rendered.fabric()
    lines = text.splitlines(keepends=True)
    n = data.draw(st.integers(0, len(lines) - 1))
    whole = parse(text)
    assert isinstance(whole, Fabric)
    for damaged in ("".join(lines[:n] + lines[n + 1 :]), "".join(lines[: n + 1] + lines[n:]), "".join(lines[:n])):
        try:
            found = parse(damaged)
        except FormatError:
            continue
        assert isinstance(found, Fabric)
        assert found == whole


@given(data=st.data(), gpus=st.integers(2, 8), links_=st.integers(2, 18))
def test_lost_links_are_refused(data: st.DataObject, gpus: int, links_: int) -> None:
    lines = rendered.nvlink_status(gpus, links_).splitlines(keepends=True)
    lost = data.draw(st.integers(0, len(lines) - 1))
    with pytest.raises(FormatError):
        parse("".join(lines[:lost] + lines[lost + 1 :]))
