"""``kopt parallelism``: answers for people and programs, settings alone, and clear errors."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Kopt

_ASKED = ("parallelism", "Llama-3-8B", "--gpu", "h100", "--sequence", "4096", "--batch", "64")


def test_the_best_splits_as_a_table_and_as_a_document(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--gpus", "8", "--price", "2")
    assert done.status == 0, done.err
    assert "tensor" in done.out
    assert "GPU-h" in done.out
    document = kopt(*_ASKED, "--gpus", "8", "--price", "2", "-o", "json").json
    assert document["schema"] == "kopt/v1"
    assert len(document["splits"]) == 3
    first = document["splits"][0]
    assert first["fit_probability"] >= 0.95
    assert first["money_per_billion_tokens"] == pytest.approx(2 * first["gpu_hours_per_billion_tokens"])
    assert set(first["settings"]) >= {"megatron", "nemo"}


def test_several_numbers_of_gpus_give_a_curve(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--gpus", "16,8", "--nics", "8x NDR400 IB", "-o", "json")
    assert done.status == 0, done.err
    assert [point["gpus"] for point in done.json["points"]] == [8, 16]
    assert done.json["threshold"] == 0.7
    assert done.json["useful_gpus"] == 16
    assert "useful" in kopt(*_ASKED, "--gpus", "8,16").out


def test_settings_alone_are_ready_to_use(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--gpus", "8", "--flags", "megatron")
    assert done.status == 0, done.err
    assert done.out.startswith("--num-layers 32\n--hidden-size 4096\n")
    assert "--global-batch-size 64" in done.out
    deepspeed = kopt(*_ASKED, "--gpus", "8", "--framework", "deepspeed", "--flags", "deepspeed")
    assert json.loads(deepspeed.out)["train_batch_size"] == 64
    refused = kopt("parallelism", "Qwen3-30B-A3B", *_ASKED[2:], "--gpus", "16", "--flags", "deepspeed")
    assert refused.status == 1


def test_what_fits_nowhere_has_status_1_and_a_reason(kopt: Kopt) -> None:
    done = kopt("parallelism", "Llama-3.1-405B", *_ASKED[2:], "--gpus", "8")
    assert done.status == 1
    assert "fits" in done.out


@pytest.mark.parametrize("gpus", ["", "8,,16", "-8", "0", "eight", "9999999", "8;16"])
def test_numbers_of_gpus_that_cannot_be_are_wrong_usage(kopt: Kopt, gpus: str) -> None:
    done = kopt(*_ASKED, "--gpus", gpus)
    assert done.status == 2
    assert "8,16,32" in done.err.replace("\n", " ")


@pytest.mark.parametrize("measured", ["", "8", "8=", "8=soon", "x=3", "0=3"])
def test_what_is_no_measured_step_is_wrong_usage(kopt: Kopt, measured: str) -> None:
    assert kopt(*_ASKED, "--gpus", "8", "--measured", measured).status == 2


def test_answers_follow_what_was_measured(kopt: Kopt) -> None:
    done = kopt(*_ASKED, "--gpus", "8", "--measured", "8=100", "--top", "1", "-o", "json")
    assert done.status == 0, done.err
    assert done.json["splits"][0]["step_seconds"] == pytest.approx(100, rel=1e-6)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"hidden_size": 1e999}', '{"hidden_size": -4}', '{"hidden_size": 4096}', "[" * 100_000],
)
def test_a_file_that_is_no_configuration_is_refused(kopt: Kopt, tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    done = kopt("parallelism", str(path), *_ASKED[2:], "--gpus", "8")
    assert done.status == 1
    assert "Traceback" not in done.err


def test_a_configuration_is_as_good_as_a_name(kopt: Kopt, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "intermediate_size": 8192}
    path.write_text(json.dumps({**sizes, "vocab_size": 32000}), encoding="utf-8")
    done = kopt("parallelism", str(path), *_ASKED[2:], "--gpus", "8", "--top", "1", "-o", "json")
    assert done.status == 0, done.err
    assert 1e9 < done.json["parameters"] < 1.6e9
