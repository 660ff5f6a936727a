"""``kopt replicas``: without a cluster, and with wrong input."""

from pathlib import Path

import pytest

from tests.cli.conftest import Kopt


def test_shapes_of_named_free_gpus_as_a_table_and_as_a_document(kopt: Kopt) -> None:
    asked = ("replicas", "--gpus", "24", "--free", "8,8,4/8,4/8,2/8", "--run-time", "6h")
    done = kopt(*asked)
    assert done.status == 0, done.err
    assert "3 × 8" in done.out
    assert "It fits now" in done.out
    document = kopt(*asked, "-o", "json").json
    assert document["schema"] == "kopt/v1"
    assert (document["selected"]["replicas"], document["selected"]["gpus_per_replica"]) == (6, 4)
    assert document["run_seconds"] == 21600
    assert {each["reason"]["code"] for each in document["rejected"]} >= {"SHAPE_SLOWER", "SHAPE_LARGER_THAN_NODE"}
    lines = kopt(*asked, "-o", "csv").out.splitlines()
    assert lines[0].startswith("selected,replicas,gpus_per_replica")
    assert len(lines) == 9


def test_a_table_of_nodes_is_read(kopt: Kopt, tmp_path: Path) -> None:
    table = tmp_path / "nodes.csv"
    table.write_text("name,gpus,free\na,8,8\nb,8,\n")
    assert kopt("replicas", "--gpus", "16", "--nodes", str(table), "-o", "json").json["selected"]["replicas"] == 2
    table.write_text("name,gpus,free\na,8,9\n")
    done = kopt("replicas", "--gpus", "16", "--nodes", str(table))
    assert done.status == 1
    assert "line 2" in done.err


def test_a_named_model_sets_the_steps(kopt: Kopt) -> None:
    asked = ("--model", "Llama-3-8B", "--gpu", "h100", "--sequence", "4096", "--batch", "64", "--nics", "8x NDR400 IB")
    document = kopt("replicas", "--gpus", "16", "--free", "8,8,4/8,4/8", *asked, "-o", "json").json
    assert document["selected"]["step_seconds"] > 0
    assert document["reasons"][0]["code"] == "STEPS_BY_SPLIT"


def test_without_a_shape_the_status_is_1(kopt: Kopt) -> None:
    done = kopt("replicas", "--gpus", "24", "--free", "8,8")
    assert done.status == 1
    assert "could ever hold" in done.out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--free", "8/4"), "no more GPUs"),
        (("--free", "eight"), "is no node"),
        (("--free", "0,0"), "none of these"),
        (("--free", "8", "--nodes", "x.csv"), "not by both"),
        (("--free", "8", "--model", "Llama-3-8B"), "--batch"),
        (("--free", "8", "--batch", "4"), "--model"),
        (("--free", "8", "--user", "ada"), "--queue"),
    ],
)
def test_wrong_usage_has_status_2_and_says_what_to_write(kopt: Kopt, options: tuple[str, ...], word: str) -> None:
    done = kopt("replicas", "--gpus", "8", *options)
    assert done.status == 2
    assert word in " ".join(done.err.replace("│", " ").split())
