"""``kopt bandwidth estimate``: measured collectives given with ``--probe`` pull the answer towards them."""

from pathlib import Path

import pytest

from tests.cli.conftest import Kopt

_NODE = Path(__file__).parents[2] / "docs" / "examples" / "dgx-1.txt"
_ASKED = ("bandwidth", "estimate", str(_NODE), "--gpu", "V100-SXM2-16GB", "--nodes", "2", "--nics", "Ethernet")


def test_a_probe_decides_what_the_description_leaves_open(kopt: Kopt) -> None:
    plain = kopt(*_ASKED, "-o", "json")
    assert plain.status == 0, plain.err
    assert "PROBE_ADVISED" in [reason["code"] for reason in plain.json["reasons"]]
    slow_us = 2 * plain.json["latency_us"]
    probed = kopt(*_ASKED, "--probe", f"all_reduce/2/1GiB={slow_us}", "-o", "json")
    assert probed.status == 0, probed.err
    assert probed.json["latency_us"] == pytest.approx(slow_us, rel=0.1)
    assert probed.json["latency_high_us"] / probed.json["latency_us"] < 1.5


@pytest.mark.parametrize("text", ["", "all_reduce", "all_reduce/2/1GiB", "all_reduce/2/1GiB=soon", "sum/2/1GiB=4"])
def test_what_is_no_probe_is_refused_with_an_example(kopt: Kopt, text: str) -> None:
    done = kopt(*_ASKED, "--probe", text)
    assert done.status == 2
    assert "all_reduce/2/1GiB=4521" in done.err.replace("\n", " ")


def test_a_probe_that_cannot_be_is_refused(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--probe", "all_reduce/2/1GiB=-4")
    assert done.status != 0
    assert "Traceback" not in done.err


def test_traffic_slows_what_it_shares_a_link_with_and_names_the_link(kopt: Kopt) -> None:
    plain = kopt(*_ASKED, "-o", "json")
    beside = kopt(*_ASKED, "--traffic", "NIC0=1", "-o", "json")
    assert beside.status == 0, beside.err
    assert beside.json["latency_us"] > plain.json["latency_us"]
    assert beside.json["bus_high_gigabytes_per_s"] == plain.json["bus_high_gigabytes_per_s"]
    assert "NIC0 carries 1 of" in beside.json["reasons"][-1]["message"]


@pytest.mark.parametrize("text", ["", "NIC0", "NIC0=", "NIC0=fast", "NIC0=-1", "NIC0=nan", "NIC0=1/0", "=3"])
def test_what_is_no_traffic_is_refused_with_an_example(kopt: Kopt, text: str) -> None:
    done = kopt(*_ASKED, "--traffic", text)
    assert done.status == 2
    assert "mlx5_0=20" in done.err.replace("\n", " ")


def test_traffic_on_no_such_link_is_refused_with_the_nearest(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--traffic", "NIC7=1")
    assert done.status != 0
    assert "do you mean NIC0?" in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
