"""Commands that truly run, observed through recordings or through tools that print what they are told."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.agents.profiler.bundle import install
from kopt.agents.profiler.collectors.amd_smi import AmdSmi
from kopt.agents.profiler.collectors.nvidia_smi import NvidiaSmi
from kopt.agents.profiler.collectors.rocm_smi import RocmSmi
from kopt.agents.profiler.observation import Observation, SteadySettings
from kopt.agents.profiler.readings import Reading, SourceError
from kopt.agents.profiler.recorded import RecordedSource, read_csv
from kopt.agents.profiler.run import RunSettings, profile_command, watch_command
from kopt.agents.profiler.sources import find_source
from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.profile import DryRun, read_dry_run
from kopt.formats.gpu_metrics import GpuSample, MetricsError, ProcessSample

HEADER = (
    "timestamp, index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%]"
)
H100_MIB = 81559
STATIC = {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X OAM"}, "driver": {"version": "6.10.5"}}


def recording(used_mib: Sequence[int], activity: int = 60) -> str:
    gpu = "0, GPU-8a, NVIDIA H100 80GB HBM3"
    stamps = [f"2026/03/01 {at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}.000" for at in range(len(used_mib))]
    rows = [
        f"{stamp}, {gpu}, {used} MiB, {H100_MIB} MiB, {activity} %, 20 %"
        for stamp, used in zip(stamps, used_mib, strict=True)
    ]
    return "\n".join([HEADER, *rows, ""])


def source(used_mib: Sequence[int], activity: int = 60) -> RecordedSource:
    return RecordedSource(read_csv(recording(used_mib, activity)))


def run(command: list[str], used_mib: Sequence[int], **settings: float | bool) -> DryRun:
    chosen = RunSettings(**{"interval_s": 0.01, "limit_s": 20.0, "grace_s": 0.5, **settings})  # type: ignore[arg-type]
    return profile_command(command, source(used_mib), chosen, relay=io.BytesIO())


def test_a_steady_run_is_ended_early_and_its_peak_kept() -> None:
    began_s = time.monotonic()
    found = run(["sleep", "60"], [4, 4, 4000, 12000, *[12000] * 200])
    assert time.monotonic() - began_s < 55
    profile = found.profile
    assert (profile.peak_bytes, profile.steady, profile.gpu) == (12000 * MIB, True, "H100-SXM5-80GB")
    assert 60 <= profile.duration_s < 70
    assert (found.exit_status, found.capped, found.usable) == (None, False, True)
    assert profile.activity == pytest.approx(0.6)


def test_a_peak_that_still_grows_is_not_steady() -> None:
    found = run(["sleep", "60"], [100 * n for n in range(1, 200)])
    assert not found.profile.steady
    assert found.profile.peak_bytes == 19900 * MIB


def test_a_run_at_the_gpus_limit_is_capped_and_no_measure() -> None:
    found = run(["sleep", "60"], [80900] * 100)
    assert found.capped
    assert not found.usable
    assert "nearly full" in " ".join(found.warnings)


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20 MiB. "
        "GPU 0 has a total capacity of 192 GiB",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
    ],
)
def test_what_says_that_memory_ran_out_is_seen_in_the_output(line: str) -> None:
    script = f"import sys, time; sys.stderr.write('x' * 70000 + {line!r} + chr(10)); sys.stderr.flush(); sys.exit(1)"
    found = run([sys.executable, "-c", script], [9000] * 5000, to_the_end=True)
    assert (found.out_of_memory, found.exit_status, found.usable) == (True, 1, False)


def test_no_such_words_no_such_flag() -> None:
    found = run(["sh", "-c", "echo 'loading memory bank; out of patience'; exit 3"], [9000] * 5000, to_the_end=True)
    assert (found.out_of_memory, found.exit_status) == (False, 3)


def test_everything_that_the_command_started_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 61 & echo $! > {pids}; setsid sleep 62 & echo $! >> {pids}; echo $$ >> {pids}; wait"
    run(["sh", "-c", script], [9000] * 150, grace_s=0.2)
    for pid in pids.read_text().split():
        stat = Path(f"/proc/{pid}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_output_passes_through_while_the_command_runs() -> None:
    relay = io.BytesIO()
    settings = RunSettings(interval_s=0.01, limit_s=20.0, grace_s=0.5)
    profile_command(["sh", "-c", "echo one; echo two >&2"], source([900] * 3000), settings, relay=relay)
    assert sorted(relay.getvalue().split()) == [b"one", b"two"]


def reading(at_s: float, used: dict[str, int], pids: dict[int, tuple[str, int]] | None = None) -> Reading:
    gpus = tuple(
        GpuSample(gpu, "NVIDIA H100 80GB HBM3", Bytes(amount), Bytes(H100_MIB * MIB)) for gpu, amount in used.items()
    )
    own = tuple(ProcessSample(pid, gpu, Bytes(amount)) for pid, (gpu, amount) in (pids or {}).items())
    return Reading(at_s, gpus, own)


def test_only_the_commands_own_processes_count_on_a_shared_gpu() -> None:
    observation = Observation()
    for at_s in range(5):
        observation.take(
            reading(at_s, {"a": 50 * GIB, "b": 9 * GIB}, {1: ("a", 3 * GIB), 2: ("a", GIB), 9: ("b", 9 * GIB)}),
            frozenset({1, 2}),
        )
    found = observation.result(source="test")
    assert (found.profile.peak_bytes, found.gpus, found.warnings) == (4 * GIB, 1, ())


def test_without_processes_what_came_on_top_of_the_idle_gpu_counts_and_this_is_said() -> None:
    observation = Observation(idle={"a": 2 * GIB})
    observation.take(reading(0, {"a": 2 * GIB}), frozenset({1}))
    observation.take(reading(1, {"a": 7 * GIB, "b": 0}), frozenset({1}))
    found = observation.result(source="test")
    assert (found.profile.peak_bytes, found.gpus) == (5 * GIB, 1)
    assert "did not tell" in found.warnings[0]


def test_a_run_without_a_gpu_says_so() -> None:
    observation = Observation()
    observation.take(reading(0, {"a": MIB}), frozenset({1}))
    found = observation.result(source="test")
    assert (found.profile.peak_bytes, found.usable, found.warnings) == (0, False, ("no GPU was used",))


@given(st.lists(st.integers(0, H100_MIB), min_size=1, max_size=60))
def test_the_peak_is_the_largest_that_was_seen_and_the_document_reads_back(used_mib: list[int]) -> None:
    observation = Observation(SteadySettings(window_s=5))
    for one in read_csv(recording(used_mib)):
        observation.take(one)
    found = observation.result(source="csv", job_type="abc", world_size=2)
    seen = [amount for amount in used_mib if amount >= 16]
    assert found.profile.peak_bytes == max(seen, default=0) * MIB
    assert read_dry_run(json.loads(json.dumps(found.to_dict()))) == found


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH for stand-ins of the vendors' tools."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_nvidia_smi_is_asked_for_gpus_and_processes(tools: Path) -> None:
    (tools / "gpus").write_text(recording([5000]))
    (tools / "apps").write_text("pid, gpu_uuid, used_gpu_memory [MiB]\nPID, GPU-8a, 3000 MiB\n")
    answers = f"--query-gpu=*) cat {tools}/gpus ;; *) sed s/PID/$(cat {tools}/pid)/ {tools}/apps ;;"
    tool(tools, "nvidia-smi", f'case "$1" in {answers} esac')
    (tools / "pid").write_text("1")
    settings = RunSettings(interval_s=0.05, limit_s=5, grace_s=0.2)
    found = profile_command(["sh", "-c", f"echo $$ > {tools}/pid; sleep 1"], NvidiaSmi(), settings, relay=io.BytesIO())
    assert (found.profile.peak_bytes, found.profile.source, found.warnings) == (3000 * MIB, "nvidia-smi", ())


def test_amds_tools_are_read(tools: Path) -> None:
    rocm = {"card0": {"GPU use (%)": "3", "VRAM Total Memory (B)": "9", "VRAM Total Used Memory (B)": "5"}}
    tool(tools, "rocm-smi", f"echo '{json.dumps(rocm)}'")
    assert RocmSmi().read().gpus[0].used_bytes == 5
    usage = {"used_vram": {"value": 5, "unit": "MB"}, "total_vram": {"value": 9, "unit": "MB"}}
    tool(
        tools,
        "amd-smi",
        f"""case "$1" in
        metric) echo '{json.dumps([{"gpu": 0, "mem_usage": usage}])}' ;;
        process) echo '[]' ;;
        static) echo '{json.dumps([STATIC])}' ;;
        esac""",
    )
    (gpu,) = AmdSmi().read().gpus
    assert (gpu.used_bytes, gpu.name, gpu.driver) == (5 * MIB, "AMD Instinct MI300X OAM", "6.10.5")


class Nvml:
    """The functions of nvidia-ml-py that are used, for a GPU with or without performance monitoring."""

    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 1, 2, 10

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, monitored: bool, refuses: bool) -> None:
        self.monitored, self.refuses, self.freed = monitored, refuses, 0
        self.nvmlInit = self.nvmlShutdown = lambda: None
        self.nvmlDeviceGetCount = lambda: 1
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlGpmSampleAlloc = lambda: object()
        self.nvmlDeviceGetUUID = lambda handle: "GPU-8a"
        self.nvmlDeviceGetName = lambda handle: b"NVIDIA H200"
        self.nvmlSystemGetDriverVersion = lambda: b"580.1"
        self.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(total=141 * GIB, used=5 * GIB)
        self.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=100, memory=30)
        self.nvmlGpmQueryDeviceSupport = lambda handle: SimpleNamespace(isSupportedDevice=self.monitored)
        self.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
            SimpleNamespace(pid=7, usedGpuMemory=4 * GIB),
            SimpleNamespace(pid=8, usedGpuMemory=None),
        ]
        self.c_nvmlGpmMetricsGet_t = lambda: SimpleNamespace(metrics=[SimpleNamespace() for _ in range(98)])

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.freed += 1

    def nvmlGpmSampleGet(self, handle: int, sample: object) -> None:
        if self.refuses:
            raise self.NVMLError("Insufficient Permissions")

    def nvmlGpmMetricsGet(self, wanted: SimpleNamespace) -> None:
        assert (wanted.version, wanted.numMetrics) == (1, 2)
        assert wanted.sample1 is not wanted.sample2
        for metric, value in zip(wanted.metrics, (61.0, 44.0), strict=False):
            metric.value, metric.nvmlReturn = value, 0


@pytest.mark.parametrize(
    ("monitored", "refuses", "name", "shares", "freed"),
    [
        (True, False, "nvml-gpm", (0.61, 0.44), 2),
        (False, False, "nvml", (1.0, 0.3), 0),
        (True, True, "nvml", (1.0, 0.3), 1),
    ],
)
def test_nvml_tells_busy_sms_apart_from_busy_time_where_it_can(
    monkeypatch: pytest.MonkeyPatch, monitored: bool, refuses: bool, name: str, shares: tuple[float, float], freed: int
) -> None:
    library = Nvml(monitored, refuses)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    found = find_source(environ={})
    (gpu,) = (reading := found.read()).gpus
    found.close()
    assert (found.name, gpu.gpu, gpu.name, gpu.driver) == (name, "GPU-8a", "NVIDIA H200", "580.1")
    assert (gpu.used_bytes, gpu.total_bytes, (gpu.activity, gpu.bandwidth)) == (5 * GIB, 141 * GIB, shares)
    assert [(one.pid, one.used_bytes) for one in reading.processes or ()] == [(7, 4 * GIB), (8, None)]
    assert library.freed == freed, "each sample is freed"


def test_a_command_that_is_to_run_to_its_end_does_so_when_readings_fail() -> None:
    class Moody(RecordedSource):
        reads = 0

        def read(self) -> Reading:
            self.reads += 1
            if self.reads > 3:
                raise SourceError("busy")
            return super().read()

    readings = read_csv(recording([900] * 10))
    settings = RunSettings(interval_s=0.01, limit_s=20, grace_s=0.2)
    command = ["sleep", "0.5"]
    seen = watch_command(command, Moody(readings), replace(settings, to_the_end=True), relay=io.BytesIO())
    assert (seen.exit_status, seen.observation.peak_bytes) == (0, 900 * MIB)
    assert watch_command(command, Moody(readings), settings, relay=io.BytesIO()).exit_status is None


def test_a_machine_without_gpus_says_what_was_tried(tools: Path) -> None:
    tool(tools, "nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9")
    with pytest.raises(SourceError, match="could not communicate with the driver"):
        find_source(environ={})
    with pytest.raises(SourceError, match="no source of metrics"):
        find_source("nonsense", {})


@pytest.mark.parametrize("text", ["", HEADER + "\n", recording([1, 2])[:-30], recording([5]) + recording([6])])
def test_a_recording_that_is_cut_or_mixed_is_refused(text: str) -> None:
    with pytest.raises(MetricsError):
        read_csv(text)


def test_the_bundle_runs_without_anything_of_ours_installed(tmp_path: Path) -> None:
    script = install(tmp_path / "kopt")
    log = tmp_path / "recorded.csv"
    log.write_text(recording([4, 7000, *[7000] * 100]))
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "KOPT_PROFILE_SOURCE": f"csv:{log}",
        "KOPT_JOB_TYPE": "abc",
    }
    command = [
        script,
        "--interval=0.01",
        "--grace=0.2",
        f"--result={tmp_path / 'message'}",
        "--",
        "sh",
        "-c",
        "env > seen; sleep 30",
    ]
    done = subprocess.run(command, env=env, cwd=tmp_path, timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    found = read_dry_run(json.loads((tmp_path / "message").read_text()))
    assert (found.profile.peak_bytes, found.job_type, found.profile.steady) == (7000 * MIB, "abc", True)
    assert (tmp_path / "message").stat().st_size <= 4096
    assert "KOPT" not in (tmp_path / "seen").read_text()


def test_a_signal_ends_the_run_and_the_profile_is_written(tmp_path: Path) -> None:
    script = install(tmp_path / "kopt")
    log = tmp_path / "recorded.csv"
    log.write_text(recording([7000] * 5000))
    env = {"PATH": os.environ["PATH"], "KOPT_PROFILE_SOURCE": f"csv:{log}"}
    command = [
        script,
        "--interval=1",
        "--grace=0.2",
        f"--result={tmp_path / 'message'}",
        "--",
        "sh",
        "-c",
        f"touch {tmp_path}/up; sleep 30",
    ]
    process = subprocess.Popen(command, env=env)
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 0
    assert read_dry_run(json.loads((tmp_path / "message").read_text())).profile.peak_bytes == 7000 * MIB
