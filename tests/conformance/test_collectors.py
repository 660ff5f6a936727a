"""What every collector of GPU metrics does: it reads a machine that has it, and says what another one lacks."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from kopt.agents.profiler.collectors.collectors import COLLECTORS
from kopt.agents.profiler.readings import Collector, SourceError
from kopt.agents.profiler.sources import find_source
from kopt.core.units import GIB, MIB

every_collector = pytest.mark.parametrize("collector", COLLECTORS, ids=[collector.name for collector in COLLECTORS])
NVIDIA_CSV = (
    "index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%]\n"
    "0, GPU-8a, NVIDIA H100 80GB HBM3, 5 MiB, 81559 MiB, 50 %, 20 %\n"
)


class _LibraryError(Exception):
    pass


def nvml(_: Path, patch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        NVMLError=_LibraryError,
        NVMLError_NotSupported=_LibraryError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: "GPU-8a",
        nvmlDeviceGetName=lambda handle: b"NVIDIA H100 80GB HBM3",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * GIB, used=5 * MIB),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50, memory=20),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
    )
    patch.setitem(sys.modules, "pynvml", library)


def amdsmi(_: Path, patch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        AmdSmiException=_LibraryError,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: [0],
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": "6.10.5"},
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_used": 5, "vram_total": 9},
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 50, "umc_activity": "N/A"},
        amdsmi_get_gpu_process_list=lambda handle: [],
    )
    patch.setitem(sys.modules, "amdsmi", library)


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def nvidia_smi(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "gpus").write_text(NVIDIA_CSV)
    (folder / "apps").write_text("pid, gpu_uuid, used_gpu_memory [MiB]\n")
    script(folder, "nvidia-smi", f'case "$1" in --query-gpu=*) cat {folder}/gpus ;; *) cat {folder}/apps ;; esac')


def amd_smi(folder: Path, _: pytest.MonkeyPatch) -> None:
    usage = {"used_vram": {"value": 5, "unit": "MB"}, "total_vram": {"value": 9, "unit": "MB"}}
    metric, static = json.dumps([{"gpu": 0, "mem_usage": usage}]), json.dumps([{"gpu": 0}])
    script(
        folder,
        "amd-smi",
        f"case \"$1\" in metric) echo '{metric}' ;; process) echo '[]' ;; *) echo '{static}' ;; esac",
    )


def rocm_smi(folder: Path, _: pytest.MonkeyPatch) -> None:
    card = {"GPU use (%)": "50", "VRAM Total Memory (B)": str(9 * MIB), "VRAM Total Used Memory (B)": str(5 * MIB)}
    script(folder, "rocm-smi", f"echo '{json.dumps({'card0': card})}'")


MACHINES: Mapping[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "nvml": nvml,
    "nvidia-smi": nvidia_smi,
    "amdsmi": amdsmi,
    "amd-smi": amd_smi,
    "rocm-smi": rocm_smi,
}
"""Stand-ins for what each collector reads."""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH of a machine that has no tool and no library of a GPU's vendor."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for library in ("pynvml", "amdsmi"):
        monkeypatch.setitem(sys.modules, library, None)
    return tmp_path


def test_names_are_unique_and_every_collector_has_a_machine() -> None:
    assert list(MACHINES) == [collector.name for collector in COLLECTORS]


@every_collector
def test_it_reads_a_machine_that_has_it(collector: Collector, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MACHINES[collector.name](bare, monkeypatch)
    source = find_source(environ={})
    assert source.name.startswith(collector.name)
    assert isinstance(source.idles, bool)
    first, second = source.read(), source.read()
    source.close()
    (gpu,) = first.gpus
    assert gpu.used_bytes == 5 * MIB
    assert gpu.activity is None or 0 <= gpu.activity <= 1
    assert first.processes in (None, ())
    assert math.isfinite(first.at_s)
    assert first.at_s <= second.at_s


@every_collector
def test_a_machine_without_it_says_so(collector: Collector, bare: Path) -> None:
    with pytest.raises(SourceError, match=r"not installed|cannot be imported|not on the PATH"):
        collector.open()
    with pytest.raises(SourceError, match=f"{collector.name}: "):
        find_source(collector.name, {})


@pytest.mark.parametrize("output", ["echo broken", "exit 3", "printf '\\0\\377'", "true", "echo '{}'"])
@pytest.mark.parametrize("tool", ["nvidia-smi", "amd-smi", "rocm-smi"])
def test_a_tool_that_prints_something_else_is_refused(tool: str, output: str, bare: Path) -> None:
    script(bare, tool, output)
    with pytest.raises(SourceError, match=tool):
        find_source(tool, {})
