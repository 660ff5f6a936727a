"""What GPU tools print is read as it stands, and nothing that is cut or contradictory passes for a figure."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import GIB, MIB
from kopt.formats.gpu_metrics import GpuSample, MetricsError, amd_smi, exporters, nvidia_smi, rocm_smi

GPUS = (
    "timestamp, index, uuid, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%], utilization.memory [%]\n"
    "2026/03/01 10:00:00.101, 0, GPU-8a, NVIDIA H100 80GB HBM3, 61234 MiB, 81559 MiB, 97 %, 44 %\n"
    "2026/03/01 10:00:00.103, 1, GPU-8b, NVIDIA H100 80GB HBM3, 4 MiB, 81559 MiB, [N/A], [Not Supported]\n"
)
APPS = "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n4711, /usr/bin/python3, 61202 MiB, GPU-8a\n"
ROCM: dict[str, Any] = {
    "card1": {"GPU use (%)": "7", "VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297"},
    "card0": {
        "GPU use (%)": "93",
        "GPU Memory Allocated (VRAM%)": "41",
        "GPU Memory Read/Write Activity (%)": "N/A",
        "Memory Activity": "N/A",
        "VRAM Total Memory (B)": "206141652992",
        "VRAM Total Used Memory (B)": "85899345920",
        "Card Series": "AMD Instinct MI300X OAM",
    },
    "system": {
        "Driver version": "6.10.5",
        "PID31": "python3, train, 2, 85899000000, 0, 120",
        "PID32": "other, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN",
    },
}
METRIC: list[dict[str, Any]] = [
    {
        "gpu": 0,
        "usage": {
            "gfx_activity": {"value": 42, "unit": "%"},
            "umc_activity": {"value": 1, "unit": "%"},
            "vcn_activity": ["N/A"],
        },
        "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}},
    }
]
PROCESS: list[dict[str, Any]] = [
    {
        "gpu": 0,
        "process_list": [
            {
                "process_info": {
                    "name": "python3",
                    "pid": 31,
                    "memory_usage": {"vram_mem": {"value": 1 << 30, "unit": "B"}},
                }
            }
        ],
    },
    {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]},
]


def test_nvidia_smi_rows_are_read_by_the_names_in_the_header() -> None:
    busy, idle = nvidia_smi.parse_query_gpu(GPUS)
    assert (busy.gpu, busy.name, busy.used_bytes, busy.activity, busy.bandwidth) == (
        "GPU-8a",
        "NVIDIA H100 80GB HBM3",
        61234 * MIB,
        0.97,
        0.44,
    )
    assert (idle.activity, idle.bandwidth, idle.total_bytes) == (None, None, 81559 * MIB)
    (process,) = nvidia_smi.parse_compute_apps(APPS)
    assert (process.pid, process.gpu, process.used_bytes) == (4711, "GPU-8a", 61202 * MIB)
    assert nvidia_smi.parse_compute_apps("pid, used_gpu_memory [MiB]\n") == ()


def test_nvidia_smi_without_units_reads_the_same() -> None:
    bare = GPUS.replace(" MiB,", ",").replace(" %", "").replace("[%]", "[%]")
    assert nvidia_smi.parse_query_gpu(bare) == nvidia_smi.parse_query_gpu(GPUS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GPUS[:-12], 3),
        (GPUS.replace("61234 MiB", "61234 parsecs"), 2),
        (GPUS.replace("61234", "x"), 2),
        (GPUS.replace("97 %", "970 %"), 2),
        (GPUS.replace("61234 MiB", "91234 MiB"), 2),
        (GPUS + "1, 2\n", 4),
        (GPUS.replace("memory.used", "memory.unused"), 1),
        ("No devices were found\n", 1),
        ("", 0),
        ("\x00\n", 1),
        (GPUS.replace("61234", "1e300"), 2),
        (GPUS.replace("61234", "-1"), 2),
        (GPUS.replace("61234", "6_1"), 2),
    ],
)
def test_malformed_nvidia_smi_output_names_its_line(text: str, line: int) -> None:
    with pytest.raises(MetricsError) as caught:
        nvidia_smi.parse_query_gpu(text)
    assert caught.value.line == line


def test_rocm_smi_cards_come_in_order_and_processes_with_their_memory() -> None:
    (first, second), (process, unknown) = rocm_smi.parse(json.dumps(ROCM))
    assert (first.driver, second.driver, unknown.used_bytes) == ("6.10.5", "6.10.5", None)
    assert (first.gpu, first.name, first.used_bytes, first.activity) == ("0", "AMD Instinct MI300X OAM", 80 * GIB, 0.93)
    assert (second.gpu, second.used_bytes, second.bandwidth) == ("1", 297, None)
    assert (process.pid, process.name, process.used_bytes) == (31, "python3, train", 85899000000)


def test_amd_smi_reads_both_shapes_and_skips_what_is_printed_before() -> None:
    (old,) = amd_smi.parse_metric(
        "WARNING: User is missing the following required groups: render\n" + json.dumps(METRIC)
    )
    (new,) = amd_smi.parse_metric(json.dumps({"gpu_data": METRIC}))
    assert old == new
    assert (old.used_bytes, old.total_bytes, old.activity, old.bandwidth) == (283 * MIB, 196592 * MIB, 0.42, 0.01)
    (process,) = amd_smi.parse_process(json.dumps(PROCESS))
    assert (process.pid, process.gpu, process.used_bytes) == (31, "0", GIB)


def test_names_and_drivers_are_read_where_they_are_told() -> None:
    static: list[dict[str, Any]] = [
        {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "driver": {"name": "amdgpu", "version": "6.10.5"}},
        {"gpu": 1, "asic": "N/A"},
    ]
    expected = {"0": ("AMD Instinct MI300X", "6.10.5"), "1": ("", "")}
    assert (
        amd_smi.parse_static(json.dumps(static)) == amd_smi.parse_static(json.dumps({"gpu_data": static})) == expected
    )
    text = "name, memory.used [MiB], driver_version\nNVIDIA H200, 4127 MiB, 580.159.04\n"
    assert nvidia_smi.parse_query_gpu(text)[0].driver == "580.159.04"


@pytest.mark.parametrize("parse", [rocm_smi.parse, amd_smi.parse_metric, amd_smi.parse_process])
@pytest.mark.parametrize("text", ["", "{}x", "[", '{"card0": ', "null", "[" * 100_000, '{"a": NaN}', "[1]", "ERROR\n"])
def test_malformed_documents_are_refused(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(MetricsError):
        parse(text)


def test_a_cut_document_names_the_line_where_it_ends() -> None:
    text = json.dumps(ROCM, indent=1)
    with pytest.raises(MetricsError) as caught:
        rocm_smi.parse(text[: len(text) // 2])
    assert caught.value.line == text[: len(text) // 2].count("\n") + 1


def _changed(document: Any, path: list[Any], value: Any) -> str:
    copy = json.loads(json.dumps(document))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(copy)


@pytest.mark.parametrize("value", [-1, "1e999", True, "many", [], {"value": "x"}, 1 << 80])
def test_figures_that_cannot_be_are_refused(value: Any) -> None:
    with pytest.raises(MetricsError):
        rocm_smi.parse(_changed(ROCM, ["card0", "VRAM Total Used Memory (B)"], value))
    with pytest.raises(MetricsError):
        amd_smi.parse_metric(_changed(METRIC, [0, "mem_usage", "used_vram"], value))


def test_exporter_series_become_gpus_and_pods_are_told_apart() -> None:
    mine = {
        "UUID": "GPU-1",
        "gpu": "0",
        "Hostname": "n",
        "modelName": "NVIDIA A100-SXM4-40GB",
        "pod": "a",
        "namespace": "x",
    }
    other = mine | {"UUID": "GPU-2", "pod": "b"}
    series = [
        ("DCGM_FI_DEV_FB_USED", mine, 10240.0),
        ("DCGM_FI_DEV_FB_FREE", mine, 30000.0),
        ("up", {}, 1.0),
        ("DCGM_FI_DEV_FB_USED", other, 5.0),
        ("DCGM_FI_PROF_SM_ACTIVE", mine, 0.61),
        ("DCGM_FI_DEV_GPU_UTIL", mine, 99.0),
        ("DCGM_FI_PROF_DRAM_ACTIVE", other, float("nan")),
    ]
    (found,) = exporters.samples_of(series, "x", "a")
    assert found == GpuSample("n/GPU-1", "NVIDIA A100-SXM4-40GB", 10 * GIB, 40240 * MIB, None, 0.61, None, pod="a")  # type: ignore[arg-type]
    assert len(exporters.samples_of(series)) == 2
    with pytest.raises(MetricsError):
        exporters.samples_of([("DCGM_FI_DEV_FB_USED", {}, 1.0)])


@pytest.mark.parametrize("factor", [1, MIB])
def test_amds_exporter_is_read_in_either_unit(factor: int) -> None:
    labels = {"gpu_id": "3", "card_model": "MI300X"}
    values = {"gpu_used_vram": 283.0 * factor, "gpu_total_vram": 196592.0 * factor, "gpu_gfx_activity": 50.0}
    (found,) = exporters.samples_of([(name, labels, value) for name, value in values.items()])
    assert (found.used_bytes, found.total_bytes, found.activity) == (283 * MIB, 196592 * MIB, 0.5)


@given(st.text(max_size=400))
def test_any_text_is_samples_or_an_error_that_says_so(text: str) -> None:
    for parse in (
        nvidia_smi.parse_query_gpu,
        nvidia_smi.parse_compute_apps,
        rocm_smi.parse,
        amd_smi.parse_metric,
        amd_smi.parse_process,
    ):
        try:
            parse(text)  # type: ignore[operator]
        except MetricsError:
            continue


@given(st.integers(1, len(GPUS) - 1))
def test_a_prefix_of_the_output_is_never_read_as_other_figures(length: int) -> None:
    whole = nvidia_smi.parse_query_gpu(GPUS)
    with contextlib.suppress(MetricsError):
        assert nvidia_smi.parse_query_gpu(GPUS[:length]) == whole[: GPUS[:length].count("\n") - 1]
