"""What was learned, what is not known, and what probes of a cluster change."""

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from kopt.core.hardware.bandwidth import BandwidthError, BandwidthEstimate, BandwidthKind, Collective
from kopt.models.bandwidth.calibration import Calibration
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.models.bandwidth.rows import read_measured, read_queries
from kopt.topology.collective_cost import analytic
from kopt.topology.hardware import HardwareRow, machine_of
from kopt.topology.set_links import gpu_set

_EXAMPLE = Path(__file__).parents[1] / "models" / "examples" / "bandwidth.py"
_H100 = machine_of(HardwareRow("H100-SXM5-80GB", "", "NVSwitch-NV18", 1, 8))
_ASKED = BandwidthQuestion(_H100, tuple(range(8)), Collective.ALL_REDUCE, 2**28, machine_key="c1")


@pytest.fixture(scope="module")
def predictor() -> BandwidthPredictor:
    spec = importlib.util.spec_from_file_location("bandwidth_example", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fitted: BandwidthPredictor = module.make().fit(module.table())
    return fitted


@pytest.fixture
def fresh(predictor: BandwidthPredictor) -> BandwidthPredictor:
    predictor.calibration = Calibration()
    return predictor


def test_known_hardware_is_corrected_and_unknown_hardware_left_to_physics(fresh: BandwidthPredictor) -> None:
    known = fresh.estimate(_ASKED)
    physics_us = analytic(gpu_set(_H100, range(8)), Collective.ALL_REDUCE, 2**28).latency_us
    assert known.latency_us == pytest.approx(1.1 * physics_us, rel=0.05)
    strange = machine_of(HardwareRow("L40S", "", "PCIe4", 1, 4))
    query = replace(_ASKED, machine=strange, gpus=(0, 1, 2, 3))
    physics_us = analytic(gpu_set(strange, range(4)), Collective.ALL_REDUCE, 2**28).latency_us
    found = fresh.estimate(query)
    assert found.latency_us == pytest.approx(physics_us, rel=0.1)
    assert found.latency_high_us / found.latency_us > known.latency_high_us / known.latency_us


def test_an_unknown_topology_is_said_and_answered_widely(fresh: BandwidthPredictor) -> None:
    strange = machine_of(HardwareRow("Foo 9000", "", "NVSwitch", 1, 4))
    found = fresh.estimate(replace(_ASKED, machine=strange, gpus=(0, 1)))
    assert found.unknown
    assert "UNKNOWN_TOPOLOGY" in [one.code for one in found.reasons]
    assert found.bus_high_gigabytes_per_s / found.bus_low_gigabytes_per_s > 7


def test_bandwidths_are_named_and_belong_together(fresh: BandwidthPredictor) -> None:
    found = fresh.estimate(_ASKED)
    assert found.bus_gigabytes_per_s == pytest.approx(1.75 * found.algorithm_gigabytes_per_s)
    assert found.link_gigabytes_per_s == 450
    assert found.meets(440, BandwidthKind.LINK)
    assert not found.meets(440, BandwidthKind.ALGORITHM)
    assert json.loads(json.dumps(found.to_dict()))["collective"] == "all_reduce"


def test_probes_pull_their_own_question_wholly_and_others_a_little(
    fresh: BandwidthPredictor,
) -> None:
    other = replace(_ASKED, collective=Collective.ALL_GATHER)
    elsewhere = replace(_ASKED, machine_key="c2")
    before = {one: fresh.estimate(one) for one in (_ASKED, other, elsewhere)}
    slow_us = 1.5 * before[_ASKED].latency_us
    for _ in range(3):
        fresh.observe(_ASKED, slow_us)
    after = {one: fresh.estimate(one) for one in (_ASKED, other, elsewhere)}
    assert after[_ASKED].latency_us == pytest.approx(slow_us, rel=0.05)
    assert 1.05 < after[other].latency_us / before[other].latency_us < 1.4
    assert after[elsewhere] == before[elsewhere]
    spread = [one[_ASKED].latency_high_us / one[_ASKED].latency_us for one in (before, after)]
    assert spread[1] < spread[0]


def test_a_calibration_is_plain_json_and_anything_else_is_refused(fresh: BandwidthPredictor) -> None:
    fresh.observe(_ASKED, 4000.0)
    text = json.dumps(fresh.calibration.to_dict())
    assert Calibration.from_dict(json.loads(text)) == fresh.calibration
    for wrong in ({}, {"version": 2, "probes": []}, {"version": 1, "probes": [{"machine": 1}]}):
        with pytest.raises(BandwidthError):
            Calibration.from_dict(wrong)
    for no_time in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BandwidthError):
            fresh.observe(_ASKED, no_time)


_HEAD = "gpu,vendor,intra_link,n_nodes,gpus_per_node,which_gpus,collective,message_bytes"
_ROW = "V100-SXM2-32GB,nvidia,HybridCubeMesh-NV1/2,1,2,{},all_reduce,1024"


def test_which_gpus_counts_where_it_names_gpus(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("\n".join([_HEAD, *(_ROW.format(which) for which in ("0 3", '"0,1"', "0..1", "", "hosts a b"))]))
    found = read_queries(path)
    assert [one.which_gpus for one in found] == [(0, 3), (0, 1), (0, 1), (0, 1), (0, 1)]
    assert found[0].gpus().ring_gbps == 50
    assert found[1].gpus().ring_gbps == 25


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("H100,nvidia,x,1,1,,all_reduce,8", "line 2.*one GPU alone"),
        ("H100,nvidia,x,1,8,,allmagic,8", "line 2.*allmagic"),
        ("H100,nvidia,x,1,8,,all_reduce,1e30", "line 2, message_bytes"),
        ("H100,nvidia,x,1,8,,all_reduce,-1", "line 2, message_bytes"),
        ("H100,nvidia,x,1,8,,all_reduce,inf", "line 2, message_bytes"),
        ("H100,nvidia,x,one,8,,all_reduce,8", "line 2, n_nodes"),
        ("H100,nvidia,x,1,8,,all_reduce", "line 2: 8 columns"),
        ("H100,nvidia,x,1,8,,all_reduce,8,9", "line 2: 8 columns"),
    ],
)
def test_rows_that_cannot_be_understood_are_named(tmp_path: Path, row: str, why: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"{_HEAD}\n{row}\n")
    with pytest.raises(BandwidthError, match=why):
        read_queries(path)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    for content, why in ((b"", "no column"), (b"a,b\n1,2\n", "no column 'gpu'"), (b"\xff\xfe\x00\x01", "CSV")):
        path.write_bytes(content)
        with pytest.raises(BandwidthError, match=why):
            read_queries(path)
    with pytest.raises(BandwidthError, match="cannot be read"):
        read_queries(tmp_path / "absent.csv")
    path.write_text(f"{_HEAD},latency_us,machine_class\n{_ROW.format('')},0,a\n")
    with pytest.raises(BandwidthError, match="is no time"):
        read_measured(path)


@pytest.mark.parametrize(("nodes", "probed"), [(2, 2), (3, 2), (64, 64)])
def test_a_wide_interval_names_the_probe_that_narrows_it_and_the_probe_does(
    fresh: BandwidthPredictor, nodes: int, probed: int
) -> None:
    machine = machine_of(HardwareRow("H100-SXM5-80GB", "", "NVSwitch-NV18", nodes, 8, "IB"))
    question = BandwidthQuestion(machine, tuple(range(8)), Collective.ALL_REDUCE, 2**30, nodes)
    wide = fresh.estimate(question)
    advice = next(reason for reason in wide.reasons if reason.code == "PROBE_ADVISED")
    assert advice.numbers["nodes"] == probed
    probe = replace(question, nodes=probed)
    fresh.observe(probe, fresh.estimate(probe).latency_us)
    narrowed = fresh.estimate(question)
    assert narrowed.bus_gigabytes_per_s == pytest.approx(wide.bus_gigabytes_per_s, rel=0.05)
    assert narrowed.bus_low_gigabytes_per_s == pytest.approx(float(advice.numbers["low_gigabytes_per_s"]), rel=0.1)
    assert narrowed.bus_low_gigabytes_per_s > 1.2 * wide.bus_low_gigabytes_per_s


def test_what_is_certain_asks_for_no_probe(fresh: BandwidthPredictor) -> None:
    assert "PROBE_ADVISED" not in [reason.code for reason in fresh.estimate(_ASKED).reasons]


def test_sockets_on_fast_cards_are_doubted_and_the_answer_says_so(fresh: BandwidthPredictor) -> None:
    def asked(nics: str) -> BandwidthEstimate:
        machine = machine_of(HardwareRow("H100-SXM5-80GB", "", "NVSwitch-NV18", 2, 8, nics))
        return fresh.estimate(BandwidthQuestion(machine, tuple(range(8)), Collective.ALL_REDUCE, 2**30, 2))

    fast, slow = asked("200 Gbps Ethernet"), asked("10GbE")
    fast_factor, slow_factor = (one.bus_gigabytes_per_s / one.bus_low_gigabytes_per_s for one in (fast, slow))
    assert fast_factor > 1.2 * slow_factor
    assert any("sockets" in reason.message for reason in fast.reasons if reason.code == "UNKNOWN_TOPOLOGY")
    assert "UNKNOWN_TOPOLOGY" not in [reason.code for reason in slow.reasons]


def _between_nodes(machine_key: str = "c1") -> BandwidthQuestion:
    machine = machine_of(HardwareRow("MI250X", "", "XGMI-mesh-8", 2, 8, "4x Slingshot-11", "aws-ofi-rccl"))
    return BandwidthQuestion(machine, tuple(range(8)), Collective.ALL_REDUCE, 2**30, 2, machine_key)


def _reaches(found: BandwidthEstimate) -> tuple[float, float]:
    """Factors from the answer to the fastest and to the slowest of its interval."""
    return found.latency_us / found.latency_low_us, found.latency_high_us / found.latency_us


def test_a_network_may_be_slower_than_its_cards_by_more_than_faster(fresh: BandwidthPredictor) -> None:
    faster, slower = _reaches(fresh.estimate(_between_nodes()))
    assert math.log(faster) == pytest.approx(0.4 * math.log(slower))
    found = fresh.estimate(_between_nodes())
    assert found.bus_high_gigabytes_per_s / found.bus_gigabytes_per_s == pytest.approx(faster)
    faster, slower = _reaches(fresh.estimate(_ASKED))
    assert faster == pytest.approx(slower), "one node"


def test_what_was_probed_is_as_sure_on_either_side(fresh: BandwidthPredictor) -> None:
    before = fresh.estimate(_between_nodes())
    fresh.observe(_between_nodes(), 1.8 * before.latency_us)
    faster, slower = _reaches(fresh.estimate(_between_nodes()))
    assert faster == pytest.approx(slower)
    assert slower < _reaches(before)[1]
