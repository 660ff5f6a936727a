"""Published tables of measured memory are read with their units, and what is wrong in them is named."""

import gzip
import os
from pathlib import Path

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.units import GIB, MIB
from kopt.core.workload.sizing import AllocationKind
from kopt.data.memory import Category, MemoryDataError, MemoryRun, MemoryTable, read_memory_runs
from kopt.data.memory.families import image_category, image_family

HEAD = "repo,model,method,quant,micro_batch,seq_len,n_gpus,gpu,grad_ckpt,other,peak_gb,unit,metric,oom"
SWIFT = "swift,qwen-7b,lora,bf16,1,2048,1,A100-80GB,True,,{},GiB,unspecified (swift logs max reserved),{}"


@pytest.fixture(scope="session")
def measured() -> MemoryTable:
    where = os.environ.get("KOPT_DATA_DIR", "")
    folder = Path(where) / "memory"
    if not where or not folder.is_dir():
        text = "KOPT_DATA_DIR names no folder with memory/ in it"
        if os.environ.get("KOPT_REQUIRE_DATA") == "1":
            pytest.fail(text)
        pytest.skip(text)
    return read_memory_runs(folder)


def _finetuning(folder: Path, *lines: str) -> MemoryTable:
    path = folder / "llm_finetune_memory.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return read_memory_runs(path)


def test_every_published_table_is_read_whole(measured: MemoryTable) -> None:
    sources = {one.source for one in measured.runs}
    assert {"itu-rad/GPUMemNet", "NVIDIA/Megatron-LM", "huggingface/peft", "QwenLM/Qwen3"} <= sources
    assert len(measured) > 10_000
    # Megatron-LM's recordings of a superseded cluster, and rows of other networks below a table.
    assert sum(measured.excluded.values()) < 260
    assert {one.category for one in measured.runs} == set(Category)


def test_figures_of_a_gpu_that_shows_more_than_it_has_are_all_doubtful(tmp_path: Path) -> None:
    head = "model,batchsize,peak mem usage,parameters,SM count,Pipelines/CUDA cores"
    rows = ["vgg,64,14000,1e8,13,2496", "vgg,8,3000,1e8,13,2496", "vgg,64,14000,1e8,40,2560"]
    path = tmp_path / "schedtune_model_stats.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    found = {one.name: one.doubt for one in read_memory_runs(path).runs}
    assert "above this GPU's memory" in found["vgg-b64@K80"]
    assert found["vgg-b8@K80"] == found["vgg-b64@K80"]
    assert not found["vgg-b64@T4"]


def test_crashed_and_capped_runs_are_marked(measured: MemoryTable) -> None:
    timm = [one for one in measured.runs if one.published and one.category is not Category.MLP]
    assert sum(one.crashed for one in timm) == 769
    assert sum(one.censored for one in timm) == 647
    assert all(one.measured is not None and one.measured < 40 * GIB for one in timm)


def test_units_and_metrics_are_those_of_the_row(measured: MemoryTable) -> None:
    by_source = {one.source: one for one in measured.runs}
    assert by_source["modelscope/ms-swift"].metric is AllocationKind.RESERVED
    assert by_source["Lightning-AI/litgpt"].metric is AllocationKind.ALLOCATED
    litgpt = next(one for one in measured.runs if one.name.startswith("phi-1.5 1.3 B Finetuning with LoRA on 1 GPU"))
    assert litgpt.measured == 4_820_000_000


def test_unlicensed_tables_say_so(measured: MemoryTable) -> None:
    assert {one.licence for one in measured.runs if one.source == "itu-rad/GPUMemNet"} == {""}
    assert all(one.licence for one in measured.runs if one.source == "NVIDIA/Megatron-LM")


def test_a_run_that_did_not_fit_has_no_figure(tmp_path: Path) -> None:
    found = _finetuning(tmp_path, SWIFT.format("27.5", "0"), SWIFT.format("", "1"), SWIFT.format("", "0"))
    assert [one.out_of_memory for one in found.runs] == [False, True]
    assert found.runs[0].measured == int(27.5 * GIB)
    assert found.excluded == {"llm_finetune_memory.csv": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (SWIFT.format("much", "0"), "line 2: peak_gb is 'much', not a number"),
        (SWIFT.format("nan", "0"), "not a finite number"),
        (SWIFT.format("-3", "0"), "no amount of GPU memory"),
        (SWIFT.format("1e9", "0"), "no amount of GPU memory"),
        (SWIFT.format("2", "0").replace("GiB", "stone"), "unit 'stone'"),
        (SWIFT.format("2", "0").replace("swift logs", "guess"), "metric"),
        (SWIFT.format("2", "0") + ",9", "another number of fields"),
        ("a,b", "another number of fields"),
        ('"', "not a CSV table"),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_column(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(MemoryDataError, match=said) as refused:
        _finetuning(tmp_path, line)
    assert "llm_finetune_memory.csv" in str(refused.value)


def test_missing_columns_torn_archives_and_empty_folders_are_told(tmp_path: Path) -> None:
    with pytest.raises(MemoryDataError, match="holds none of the tables"):
        read_memory_runs(tmp_path)
    (tmp_path / "peft_method_comparison.csv").write_text("a,b\n1,2\n")
    with pytest.raises(MemoryDataError, match="no column"):
        read_memory_runs(tmp_path)
    path = tmp_path / "megatron_golden_memory.csv.gz"
    path.write_bytes(gzip.compress(b"test,gpu\n" * 50)[:-9])
    with pytest.raises(MemoryDataError, match=r"megatron_golden_memory\.csv\.gz"):
        read_memory_runs(path)
    (tmp_path / "other.csv").write_text("a\n1\n")
    with pytest.raises(MemoryDataError, match="no such table is known"):
        read_memory_runs(tmp_path / "other.csv")


@given(content=st.binary(max_size=300))
@settings(max_examples=examples(150))
def test_any_bytes_are_a_table_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "llm_finetune_memory.csv"
    path.write_bytes(HEAD.encode() + b"\n" + content)
    try:
        found = read_memory_runs(path)
    except MemoryDataError:
        return
    assert isinstance(found, MemoryTable)


@pytest.mark.parametrize(
    ("model", "family", "category"),
    [
        ("resnet50", "resne", Category.CNN),
        ("tf_efficientnet_b0", "efficientnet", Category.CNN),
        ("seresnext101d_32x8d", "resne", Category.CNN),
        ("vit_base_patch16_224", "vit", Category.TRANSFORMER),
        ("swinv2_tiny_window8_256", "swin", Category.TRANSFORMER),
        ("vgg16_bn", "vgg", Category.CNN),
        ("mixer_b16_224", "mixer", Category.TRANSFORMER),
    ],
)
def test_kin_are_held_out_together(model: str, family: str, category: Category) -> None:
    assert (image_family(model), image_category(model)) == (family, category)


def test_a_run_is_measured_or_out_of_memory() -> None:
    with pytest.raises(ValueError, match="either"):
        MemoryRun("x", "f", "s", "MIT", Category.CNN, None, None, "A100")
    with pytest.raises(ValueError, match="no measurement"):
        MemoryRun("x", "f", "s", "MIT", Category.CNN, None, -MIB, "A100")  # type: ignore[arg-type]
