"""``amd-smi metric --usage --mem-usage --json`` and ``amd-smi process --general --json``.

Source: amd-smi's own documentation and ``amdsmi_commands.py``. Before ROCm 7 the top is a list of GPUs, since then an
object with ``gpu_data``. Its MB are MiB.
"""

from collections.abc import Iterator
from typing import Any

from kopt.formats.gpu_metrics.documents import decode, memory, percentage
from kopt.formats.gpu_metrics.samples import GpuSample, MetricsError, ProcessSample

METRIC_ARGUMENTS = ("metric", "--usage", "--mem-usage", "--json")
PROCESS_ARGUMENTS = ("process", "--general", "--json")
STATIC_ARGUMENTS = ("static", "--asic", "--driver", "--json")


def parse_metric(text: str) -> tuple[GpuSample, ...]:
    """GPUs in the tool's order. Raises MetricsError."""
    gpu_samples = tuple([_gpu(index, entry) for index, entry in entries(text)])
    if not gpu_samples:
        raise MetricsError("no GPU in it; did amd-smi find one?")
    return gpu_samples


def parse_process(text: str) -> tuple[ProcessSample, ...]:
    """Processes of all GPUs. Raises MetricsError."""
    return tuple([process for index, entry in entries(text) for process in _processes(index, entry)])


def parse_static(text: str) -> dict[str, tuple[str, str]]:
    """Market name and driver version of each GPU by its number, empty where it does not say. Raises MetricsError."""
    return {
        index: (_text(entry, "asic", "market_name"), _text(entry, "driver", "version"))
        for index, entry in entries(text)
    }


def _text(entry: dict[str, Any], part: str, name: str) -> str:
    result = entry.get(part)
    value = result.get(name) if isinstance(result, dict) else None
    return value if isinstance(value, str) else ""


def entries(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the tool says of each GPU, by its number. Raises MetricsError."""
    document, line = decode(text)
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise MetricsError("a list of GPUs is expected", line)
    for entry in entries:
        index = entry.get("gpu") if isinstance(entry, dict) else None
        if isinstance(index, bool) or not isinstance(index, int):
            raise MetricsError("an entry does not say which GPU it is of", line)
        yield str(index), entry


def _gpu(index: str, entry: dict[str, Any]) -> GpuSample:
    usage, held = entry.get("usage"), entry.get("mem_usage")
    if not isinstance(held, dict):
        raise MetricsError(f"GPU {index} does not say how much memory is used; add --mem-usage")
    used = memory(held.get("used_vram"), f"GPU {index}: used_vram", "MB")
    total = memory(held.get("total_vram"), f"GPU {index}: total_vram", "MB")
    if used is not None and total is not None and used > total:
        raise MetricsError(f"GPU {index}: {used} of {total} bytes are used")
    usage = usage if isinstance(usage, dict) else {}
    return GpuSample(
        index,
        "",
        used,
        total,
        activity=percentage(usage.get("gfx_activity"), f"GPU {index}: gfx_activity"),
        bandwidth=percentage(usage.get("umc_activity"), f"GPU {index}: umc_activity"),
    )


def _processes(index: str, entry: dict[str, Any]) -> Iterator[ProcessSample]:
    for item in entry.get("process_list") or []:
        info = item.get("process_info", item) if isinstance(item, dict) else None
        if isinstance(info, str):
            # "No running processes detected"
            continue
        pid = info.get("pid") if isinstance(info, dict) else None
        if info is None or isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
            raise MetricsError(f"GPU {index}: a process without an id")
        usage = info.get("memory_usage")
        vram = usage.get("vram_mem") if isinstance(usage, dict) else info.get("mem_usage")
        yield ProcessSample(pid, index, memory(vram, f"process {pid}: vram_mem", "B"), str(info.get("name", "")))
