"""``kopt topology parse``: files, folders and standard input to one document, or a line that says what is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import topology_outputs as rendered
from topology_outputs import Machine

from kopt.core.hardware.node_topology import NodeTopology
from tests.cli.conftest import Done, Kopt

PAIR = Machine((("X", "NV12"), ("NV12", "X")), (("PIX",), ("SYS",)))
START = "from kopt.cli.main import app; app(prog_name='kopt')"


def parse_files(kopt: Kopt, *arguments: object) -> Done:
    return kopt("topology", "parse", *map(str, arguments))


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(rendered.topo_m(PAIR))
    return path


def test_json_is_the_document_of_the_core_type(kopt: Kopt, matrix: Path) -> None:
    done = parse_files(kopt, matrix, "-o", "json")
    assert done.status == 0, done.err
    assert (done.json["schema"], done.json["kind"], done.json["tool"]) == ("kopt/v1", "node", "nvidia-smi topo -m")
    assert done.json["links"] == [
        {"a": 0, "b": 1, "type": "NVLINK", "count": 12, "weight": None, "hops": None, "gigabytes_per_s": None}
    ]
    assert NodeTopology.from_dict(done.json).nic_affinity[0].nic == "mlx5_0"


def test_the_table_shows_links_and_cards(kopt: Kopt, matrix: Path) -> None:
    done = parse_files(kopt, matrix)
    assert "NV12: 1" in done.out
    assert "PIX: mlx5_0" in done.out


def test_several_files_are_one_node(kopt: Kopt, matrix: Path, tmp_path: Path) -> None:
    status = tmp_path / "nvlink.txt"
    status.write_text(rendered.nvlink_status(2, 12))
    done = parse_files(kopt, matrix, status, "-o", "json")
    assert done.json["links"][0]["gigabytes_per_s"] == 300.0


def test_what_does_not_fit_together_is_refused(kopt: Kopt, matrix: Path, tmp_path: Path) -> None:
    for name, text in (("rocm.txt", rendered.rocm_topo(PAIR)), ("fabric.txt", rendered.fabric())):
        (tmp_path / name).write_text(text)
        done = parse_files(kopt, matrix, tmp_path / name, "-o", "json")
        assert (done.status, done.out) == (1, "")
        assert "vendor" in done.err or "fabric.txt: only what tools say of one node" in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"bash: nvidia-smi: command not found\n", "not the output of a tool that is known here: 'bash: nvidia-smi"),
        (b"", "there is nothing in it; did the tool run?"),
        (b"\x7fELF\x02\x01\x00\x00", "zero bytes"),
        (rendered.topo_m(PAIR).encode()[:120], "line"),
        (b'{"a": [1, 2', "not JSON"),
        (b"switches:\n  a: {}\n  a: {}\nblocks:\n- switch: a\n", "duplicate key 'a'"),
        (b"switches: &x\n  a: {}\nblocks:\n- *x\n", "not the output|alias"),
    ],
)
def test_what_is_refused_is_named_and_nothing_is_printed(
    kopt: Kopt, tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "given.txt"
    path.write_bytes(content)
    done = parse_files(kopt, path, "-o", "json")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("kopt: ")
    assert done.err.count("\n") == 1
    assert any(one in done.err for one in message.split("|")), done.err


def test_files_that_are_not_there_and_wrong_usage(kopt: Kopt, tmp_path: Path) -> None:
    assert "there is no such file" in parse_files(kopt, tmp_path / "none.txt").err
    assert parse_files(kopt, "-", "-").status == 2
    assert parse_files(kopt).status == 2


def test_a_folder_of_sys(kopt: Kopt, tmp_path: Path) -> None:
    for name, text in rendered.kfd(PAIR).items():
        path = tmp_path / "topology" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = parse_files(kopt, tmp_path / "topology", "-o", "json")
    assert [(link["type"], link["weight"]) for link in done.json["links"]] == [("XGMI", 15)]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "a folder, but not one of /sys/class/kfd" in parse_files(kopt, empty).err


def test_links_to_folders_are_followed_once(kopt: Kopt, tmp_path: Path) -> None:
    card = tmp_path / "devices" / "mlx5_0"
    (card / "ports" / "1").mkdir(parents=True)
    for name, text in (("rate", "400 Gb/sec (4X NDR)"), ("state", "4: ACTIVE"), ("link_layer", "InfiniBand")):
        (card / "ports" / "1" / name).write_text(f"{text}\n")
    (card / "again").symlink_to(card)
    listed = tmp_path / "infiniband"
    listed.mkdir()
    (listed / "mlx5_0").symlink_to(card)
    done = parse_files(kopt, listed, "-o", "json")
    assert [(nic["name"], nic["gbit_per_s"]) for nic in done.json["nics"]] == [("mlx5_0", 400.0)]


def test_what_powershell_redirects_is_read(kopt: Kopt, tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_bytes(rendered.topo_m(PAIR).replace("\n", "\r\n").encode("utf-16"))
    assert len(parse_files(kopt, path, "-o", "json").json["gpus"]) == 2


def test_other_documents_and_formats(kopt: Kopt, tmp_path: Path) -> None:
    path = tmp_path / "given.txt"
    path.write_text(rendered.nccl_tests())
    assert parse_files(kopt, path, "-o", "json").json["runs"][0]["collective"] == "all_reduce"
    assert "busbw" in parse_files(kopt, path, "-o", "csv").out
    path.write_text("switches:\n  a:\n    switches: [b]\nblocks:\n- switch: b\n  nodes: ['n[1-2]']\n")
    assert parse_files(kopt, path, "-o", "yaml").out.startswith("schema: kopt/v1\nkind: fabric\n")
    path.write_text("mlx5_0 port 1 ==> ib0 (Up)\n")
    assert "ib0" in parse_files(kopt, path).out


def test_standard_input_and_warnings_on_standard_error() -> None:
    text = rendered.topo_m(PAIR, raw=False, legend=False)
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, "topology", "parse", "-", "-o", "json"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["warnings"]
    assert done.stderr.startswith("kopt: warning: the legend of the network cards is missing")
