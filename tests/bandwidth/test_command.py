"""``kopt bandwidth``: tables in, tables out, one set at a time, and clear refusals."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kopt
from kopt.cli.main import app
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink

_LINKS = tuple(TopologyLink(a, b, LinkType.NVLINK, 18) for a in range(8) for b in range(a + 1, 8))
_NODE = NodeTopology("n1", tuple(TopologyGpu(n, "NVIDIA H100 80GB HBM3") for n in range(8)), _LINKS)
_TABLE = """gpu,n_nodes,gpus_per_node,collective,message_bytes,intra_link,nic_config
MI300X,1,8,all_reduce,8589934592,XGMI-fullmesh-8,
MI300X,1,2,all_reduce,1024,XGMI-fullmesh-8,
H100,2,8,all_gather,1073741824,NVSwitch-NV18,8x NDR400 IB
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("KOPT_HOME", str(tmp_path / "home"))
    return CliRunner()


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(_NODE.to_dict()))
    return str(path)


def test_a_table_is_answered_row_by_row(runner: CliRunner, tmp_path: Path) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text(_TABLE)
    done = runner.invoke(app, ["bandwidth", "predict", str(table), "--out", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.open()))
    assert [one["row"] for one in rows] == ["0", "1", "2"]
    assert list(rows[0]) == ["row", "latency_us", "algbw_GBps", "busbw_GBps", "low", "high"]
    for number, held in ((0, "busbw_GBps"), (1, "latency_us"), (2, "busbw_GBps")):
        assert float(rows[number]["low"]) < float(rows[number][held]) < float(rows[number]["high"])
    assert float(rows[0]["busbw_GBps"]) == pytest.approx(1.75 * float(rows[0]["algbw_GBps"]), rel=1e-4)


def test_a_refused_table_leaves_the_old_answers(runner: CliRunner, tmp_path: Path) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text(_TABLE.replace("all_gather", "all_magic"))
    out.write_text("old")
    done = runner.invoke(app, ["bandwidth", "predict", str(table), "--out", str(out)])
    assert done.exit_code == 1
    assert "line 4" in done.stderr
    assert "all_magic" in done.stderr
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_one_set_is_told_with_its_kinds_and_reasons(runner: CliRunner, node: str) -> None:
    done = runner.invoke(app, ["bandwidth", "estimate", node, "--gpus", "0-3", "--bytes", "1GiB", "-o", "json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["gpus"] == [0, 1, 2, 3]
    assert found["link_gigabytes_per_s"] == 450
    assert 250 < found["bus_gigabytes_per_s"] < 450
    assert not found["unknown"]
    table = runner.invoke(app, ["bandwidth", "estimate", node]).stdout
    assert all(kind in table for kind in ("algorithm", "bus", "link"))


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (["--gpus", "0,12"], 1, "GPU 12 is not there"),
        (["--gpus", "0"], 1, "two GPUs"),
        (["--gpus", "0;1"], 2, "no list of GPUs"),
        (["--collective", "magic"], 2, "all_reduce"),
        (["--bytes", "1000TiB"], 2, "no message"),
        (["--bytes", "many"], 2, "many"),
        (["--nodes", "4"], 1, "--nics"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    runner: CliRunner, node: str, options: list[str], status: int, why: str
) -> None:
    done = runner.invoke(app, ["bandwidth", "estimate", node, *options])
    assert done.exit_code == status
    assert why in " ".join(done.stderr.replace("│", " ").split())


def test_what_is_no_node_is_refused(runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "any.json"
    for text in ("{", '{"schema": "kopt/v1", "kind": "fabric"}', "[]", "hello"):
        path.write_text(text)
        done = runner.invoke(app, ["bandwidth", "estimate", str(path)])
        assert done.exit_code == 1
        assert "Traceback" not in done.stderr


def test_python_answers_as_the_command_does() -> None:
    found = kopt.bandwidth(_NODE, [0, 1, 2, 3], "all_gather", 2**28, model="shipped")
    again = kopt.bandwidth(_NODE.to_dict(), [0, 1, 2, 3], "all_gather", 2**28, model="shipped")
    several = kopt.bandwidth(_NODE, range(8), nodes=4, nics="8x NDR400 IB", model="shipped")
    assert found == again
    assert isinstance(found, kopt.BandwidthEstimate)
    assert several.nodes == 4
    assert several.bus_gigabytes_per_s > 100
