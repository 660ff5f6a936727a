"""One reader per published table. Each yields runs; None counts a row that has nothing to compare with."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.sizing import AllocationKind
from kopt.data.memory.batches import Figure, doubts
from kopt.data.memory.families import image_category, image_family
from kopt.data.memory.table import Category, MemoryDataError, MemoryRun, Row, read_rows

Reader = Callable[[Path], Iterator[MemoryRun | None]]

_GB = 10**9
_MEBIBYTES = ("fake_fwd_mib", "fake_bwd_mib", "fake_last_mib")


def timm_training(path: Path) -> Iterator[MemoryRun | None]:
    """Image models trained on an A100 with 40 GB; the figures are those of nvidia-smi.

    The column ``crashed`` marks every figure below that of a smaller batch, whichever of the two is wrong.
    """
    rows = list(read_rows(path, ("model", "batch_size", "measured_mib", "censored_40gb", "crashed", *_MEBIBYTES)))
    doubted = _doubted(rows)
    for row in rows:
        model = row.text("model")
        published = {mebibyte: row.amount(mebibyte, MIB) for mebibyte in _MEBIBYTES}
        yield MemoryRun(
            f"{model}-b{row.required('batch_size'):.0f}",
            image_family(model),
            "itu-rad/GPUMemNet",
            "",
            image_category(model),
            AllocationKind.PROCESS,
            row.amount("measured_mib", MIB),
            "A100-SXM4-40GB",
            arguments={"model": model, "batch_size": row.required("batch_size")},
            published={f"naive fake tensors, {key[5:8]}": result for key, result in published.items() if result},
            censored=row.flag("censored_40gb"),
            crashed=row.flag("crashed"),
            doubt=doubted.get((model, int(row.required("batch_size"))), ""),
        )


def _doubted(rows: Sequence[Row]) -> dict[tuple[str, int], str]:
    """Model and batch size → why other batch sizes speak against the figure."""
    figures: dict[str, dict[int, Figure]] = {}
    for row in rows:
        measured, tensors = row.amount("measured_mib", MIB), row.amount("fake_bwd_mib", MIB)
        if measured is not None and tensors is not None:
            figures.setdefault(row.text("model"), {})[int(row.required("batch_size"))] = Figure(measured, tensors)
    return {(model, batch): why for model, own in figures.items() for batch, why in doubts(own).items()}


_SUPERSEDED = "dracooci"
"""Recordings of a cluster that later ones replace: their command lines have changed since (unfused attention then)."""


def megatron(path: Path) -> Iterator[MemoryRun | None]:
    """Functional tests of Megatron-LM with their whole command line; ``torch.cuda.max_memory_allocated``."""
    for row in read_rows(path, ("test", "gpu", "mem_max_allocated_bytes", "all_args", "tp", "pp", "num_layers")):
        measured = row.amount("mem_max_allocated_bytes", 1)
        if measured is None or _SUPERSEDED in row.text("golden"):
            yield None
            continue
        try:
            arguments = json.loads(row.text("all_args"))
        except ValueError:
            raise row.error("all_args is not JSON") from None
        if not isinstance(arguments, dict):
            raise row.error("all_args is not an object of arguments")
        kept = {key: value for key, value in arguments.items() if isinstance(value, str | int | float | bool)}
        plain = row.arguments("tp", "pp", "cp", "ep", "env")
        yield MemoryRun(
            f"{row.text('test')}@{row.text('gpu')}",
            row.text("test").split("/")[0],
            "NVIDIA/Megatron-LM",
            "BSD-3-Clause",
            Category.SHARDED,
            AllocationKind.ALLOCATED,
            measured,
            row.text("gpu"),
            arguments={**plain, **kept},
        )


_METRICS: Mapping[str, AllocationKind | None] = {
    "max allocated": AllocationKind.ALLOCATED,
    "unspecified (swift logs max reserved)": AllocationKind.RESERVED,
    "unspecified (likely nvidia-smi)": AllocationKind.PROCESS,
    "": None,
}
_UNITS = {"GB": _GB, "GiB": GIB}


def finetuning(path: Path) -> Iterator[MemoryRun | None]:
    """Published resource tables of litgpt, ms-swift and Qwen: full fine-tuning, LoRA, QLoRA, and inference."""
    columns = ("model", "method", "quant", "micro_batch", "seq_len", "n_gpus", "grad_ckpt", "other")
    for row in read_rows(path, ("repo", "gpu", "peak_gb", "unit", "metric", "oom", *columns)):
        if row.text("unit") not in _UNITS:
            raise row.error(f"unit {row.text('unit')[:20]!r} is none of {', '.join(_UNITS)}")
        if row.text("metric") not in _METRICS:
            raise row.error(f"metric {row.text('metric')[:40]!r} is not known")
        measured, failed = row.amount("peak_gb", _UNITS[row.text("unit")]), row.text("oom") == "1"
        if failed == (measured is not None):
            yield None
            continue
        gpus = int(row.number("n_gpus") or 1)
        name = f"{row.text('model')} {row.text('method')} {row.text('quant')} {row.text('seq_len')}"
        yield MemoryRun(
            re.sub(r"\s+", " ", name),
            _letters(row.text("model")),
            row.text("repo"),
            "Apache-2.0",
            _language_category(row, gpus),
            _METRICS[row.text("metric")],
            measured,
            row.text("gpu"),
            gpus,
            arguments=row.arguments(*columns),
            out_of_memory=failed,
        )


def _language_category(row: Row, gpus: int) -> Category:
    method = row.text("method").lower()
    if "inference" in method:
        return Category.INFERENCE
    if gpus > 1:
        return Category.SHARDED
    return Category.LLM_FULL if "full" in method else Category.LORA


def peft(path: Path) -> Iterator[MemoryRun | None]:
    """The method comparison of PEFT: accelerator memory reserved, at most."""
    columns = (
        "task",
        "model_id",
        "dtype",
        "max_seq_length",
        "batch_size",
        "batch_size_eval",
        "use_gc",
        "use_amp",
        "optimizer",
        "peft_type",
        "r",
        "target_modules",
        "num_trainable_params",
        "num_total_params",
    )
    for row in read_rows(path, ("experiment", "accelerator_memory_max", "status", "gpu", *columns)):
        measured = row.amount("accelerator_memory_max", 1)
        if row.text("status") != "success" or measured is None:
            yield None
            continue
        family = row.text("model_id").rpartition("/")[2]
        yield MemoryRun(
            row.text("experiment"),
            f"{family}-{row.text('peft_type').lower()}",
            "huggingface/peft",
            "Apache-2.0",
            Category.LORA,
            AllocationKind.RESERVED,
            measured,
            "L40S",
            arguments=row.arguments(*columns),
        )


def qwen_inference(path: Path) -> Iterator[MemoryRun | None]:
    """Generation with transformers; a sum of ``max_memory_allocated`` over GPUs.

    The tables say GB and mean GiB: as decimal gigabytes their figures would be below the weights alone.
    """
    columns = ("model", "input_len", "gen_len", "batch", "quant", "n_gpus", "engine")
    for row in read_rows(path, ("gpu", "mem_gb_sum", "metric", *columns)):
        measured, gpus = row.amount("mem_gb_sum", GIB), int(row.required("n_gpus"))
        if measured is None:
            yield None
            continue
        name = f"{row.text('model')} {row.text('quant')} {row.text('input_len')}"
        yield MemoryRun(
            name,
            row.text("model"),
            "QwenLM/Qwen3",
            "",
            Category.INFERENCE,
            AllocationKind.ALLOCATED,
            measured,
            row.text("gpu"),
            gpus,
            arguments=row.arguments(*columns),
            per_gpu=gpus == 1,
        )


def openmmlab(path: Path) -> Iterator[MemoryRun | None]:
    """Model zoos of mmdetection and its kin: ``max_memory_allocated``, rounded to 0.1 GB, V100."""
    for row in read_rows(path, ("repo", "readme", "config_path", "mem_raw", "mem_unit")):
        if row.text("mem_unit") not in ("GB", "MB"):
            raise row.error(f"mem_unit {row.text('mem_unit')[:20]!r} is neither GB nor MB")
        # mmcv prints whole MiB as "MB"; the tables' GB are those, divided by 1,000 and rounded.
        measured = row.amount("mem_raw", MIB if row.text("mem_unit") == "MB" else 1000 * MIB)
        if measured is None:
            yield None
            continue
        parts = Path(row.text("config_path") or row.text("readme")).parts
        yield MemoryRun(
            row.text("config_path") or row.text("readme"),
            parts[-2] if len(parts) > 1 else parts[0],
            row.text("repo"),
            "Apache-2.0",
            Category.DETECTION,
            AllocationKind.ALLOCATED,
            measured,
            "V100-SXM2-32GB",
            8,
            arguments=row.arguments("config_path"),
        )


def detectron2(path: Path) -> Iterator[MemoryRun | None]:
    """Detectron2's model zoo: ``max_memory_allocated`` in GB, two images on each of eight V100."""
    for row in read_rows(path, ("section", "name", "config", "train_mem_gb")):
        measured = row.amount("train_mem_gb", _GB)
        if measured is None:
            yield None
            continue
        yield MemoryRun(
            f"{row.text('section')} {row.text('name')}",
            row.text("section").rstrip(":"),
            "facebookresearch/detectron2",
            "Apache-2.0",
            Category.DETECTION,
            AllocationKind.ALLOCATED,
            measured,
            "V100-SXM2-16GB",
            8,
            arguments=row.arguments("config", "lr_sched"),
        )


_SCHEDTUNE_GPUS = {
    (2496, 13): "K80",
    (2560, 40): "T4",
    (5888, 46): "RTX-3070",
    (5120, 80): "V100-SXM2-16GB",
    (10496, 82): "RTX-3090",
}
_SCHEDTUNE_COLUMNS = ("model", "batchsize", "peak mem usage", "parameters", "SM count")


def schedtune(path: Path) -> Iterator[MemoryRun | None]:
    """Twelve CNNs by batch and GPU: the peak of the process in MiB. GPUs are identified by their cores, not by name."""
    rows = [(_schedtune_gpu(row), row) for row in read_rows(path, _SCHEDTUNE_COLUMNS)]
    more = {gpu for gpu, row in rows if (row.amount("peak mem usage", MIB) or 0) > find_gpu(gpu).memory_bytes}
    for gpu, row in rows:
        model = row.text("model")
        yield MemoryRun(
            f"{model}-b{row.required('batchsize'):.0f}@{gpu}",
            image_family(model),
            "hadeelalbahar/SchedTune",
            "MIT",
            image_category(model),
            AllocationKind.PROCESS,
            row.amount("peak mem usage", MIB),
            gpu,
            arguments={"model": model, "batch_size": row.required("batchsize"), **row.arguments("parameters")},
            doubt="its source has figures above this GPU's memory: they are of another" if gpu in more else "",
        )


def _schedtune_gpu(row: Row) -> str:
    key = (int(row.required("Pipelines/CUDA cores")), int(row.required("SM count")))
    if key not in _SCHEDTUNE_GPUS:
        raise row.error(f"no GPU with {key[0]} cores in {key[1]} multiprocessors is known")
    return _SCHEDTUNE_GPUS[key]


def horus(path: Path) -> Iterator[MemoryRun | None]:
    """Fully connected networks on MNIST; summary rows of other networks stand below them and are left out."""
    for row in read_rows(path, ("gpumemory_max", "neurons", "layers", "model")):
        measured = row.number("gpumemory_max")
        if row.text("model") != "FC on MNIST" or measured is None:
            yield None
            continue
        yield MemoryRun(
            f"fc-{row.required('layers'):.0f}x{row.required('neurons'):.0f}",
            "fc",
            "itu-rad/GPUMemNet",
            "",
            Category.MLP,
            AllocationKind.PROCESS,
            row.amount("gpumemory_max", MIB),
            "A100-SXM4-40GB",
            arguments=row.arguments("neurons", "layers"),
        )


def synthetic_mlps(path: Path) -> Iterator[MemoryRun | None]:
    """Made-up multilayer perceptrons, with the SM activity that was measured beside the memory."""
    columns = ("Activations-Params", "Batch Size", "Avg GPUTL", "Avg GRACT", "Avg SMACT", "Avg SMOCC", "Avg FP32A")
    for row in read_rows(path, ("Filename", "Max GPU Memory (MiB)", *columns)):
        yield MemoryRun(
            row.text("Filename"),
            "mlp",
            "itu-rad/GPUMemNet",
            "",
            Category.MLP,
            AllocationKind.PROCESS,
            row.amount("Max GPU Memory (MiB)", MIB),
            "A100-SXM4-40GB",
            arguments=row.arguments(*columns),
        )


def largest_batches(path: Path) -> Iterator[MemoryRun | None]:
    """timm's own training benchmark: the largest batch that fitted 24 GB, so a bound from above, not a measurement."""
    for row in read_rows(path, ("model", "train_batch_size", "train_img_size", "param_count")):
        model = row.text("model")
        yield MemoryRun(
            model,
            image_family(model),
            "huggingface/pytorch-image-models",
            "Apache-2.0",
            image_category(model),
            AllocationKind.PROCESS,
            Bytes(24 * GIB),
            "RTX-3090",
            censored=True,
            arguments=row.arguments("model", "train_batch_size", "train_img_size", "param_count"),
        )


READERS: Mapping[str, Reader] = {
    "gpumemnet_timm_faketensor_a100_40gb.csv.gz": timm_training,
    "megatron_golden_memory.csv.gz": megatron,
    "llm_finetune_memory.csv": finetuning,
    "peft_method_comparison.csv": peft,
    "qwen_transformers_inference_memory.csv": qwen_inference,
    "openmmlab_train_memory.csv": openmmlab,
    "detectron2_train_memory.csv": detectron2,
    "schedtune_model_stats.csv": schedtune,
    "gpumemnet_horus_fc.csv": horus,
    "gpumemnet_mlp_a100.csv.gz": synthetic_mlps,
    "timm_train_rtx3090_24gb_max_batch.csv": largest_batches,
}
"""File name → reader."""


def read_source(path: Path) -> Iterator[MemoryRun | None]:
    """Runs of one file, by its name. Raises MemoryDataError."""
    if path.name not in READERS:
        raise MemoryDataError(f"no such table is known; there are {', '.join(READERS)}", path=path)
    return READERS[path.name](path)


def _letters(name: str) -> str:
    match = re.match(r"[a-z]+", name.lower())
    return match[0] if match else name
