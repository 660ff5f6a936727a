"""Readings by the exporters of others and by amd-smi, in recorded outputs."""

from pathlib import Path

import pytest

from kopt.agents.telemetry.sources import samples
from kopt.core.hardware.gpu_telemetry import FIELDS
from kopt.core.units import MIB
from kopt.formats.gpu_metrics import MetricsError, amd_telemetry
from kopt.formats.gpu_metrics.exported import device_readings
from tests.telemetry import recorded


def test_dcgm_exporters_names_and_units_become_those_of_the_table() -> None:
    found = device_readings(samples(recorded.dcgm()))
    assert found.nodes == {recorded.NODE}
    shared, part = found.devices
    assert (shared.uuid, shared.partition, part.partition, part.profile) == ("GPU-a", "", "7", "1g.10gb")
    assert shared.values == {
        # Once, not once for each pod that shares the GPU.
        "memory_used_bytes": 1000.0 * MIB,
        "memory_total_bytes": 81_000.0 * MIB,
        "sm_active_ratio": 0.5,
        "power_watts": 300.5,
        "energy_joules_total": 5.0,
        "last_xid": 31.0,
    }
    assert shared.labelled["xid_errors_total"] == {"31": 4.0}
    assert {name for name, value in shared.labelled["throttled"].items() if value} == {"thermal"}
    assert part.values == {"memory_used_bytes": 200.0 * MIB, "busy_ratio": 0.25}


def test_amds_exporter_is_read_and_growth_needs_two_scrapes() -> None:
    before = device_readings(samples(recorded.amd(xgmi_kb=1000)))
    (first,) = before.devices
    assert first.values["memory_used_bytes"] == 16_384.0 * MIB
    assert (first.values["busy_ratio"], first.values["energy_joules_total"]) == (0.8, 7.0)
    assert "link_bytes_per_second" not in first.values
    (second,) = device_readings(samples(recorded.amd(xgmi_kb=3500)), before.counters, 10.0).devices
    assert second.values["link_bytes_per_second"] == pytest.approx(4 * 2500 * 1000 / 10)
    (fell,) = device_readings(samples(recorded.amd(xgmi_kb=1)), before.counters, 10.0).devices
    assert "link_bytes_per_second" not in fell.values


def test_partitions_of_amd_have_memory_and_no_activity_of_the_whole() -> None:
    devices = device_readings(samples(recorded.amd(partitions=3))).devices
    assert [(one.partition, one.profile) for one in devices] == [("0", "cpx"), ("1", "cpx"), ("2", "cpx")]
    assert all("busy_ratio" not in one.values for one in devices)
    assert {one.values["memory_used_bytes"] for one in devices} == {1024.0 * MIB}


def test_amd_smi_is_read_in_the_units_of_the_table() -> None:
    (gpu,) = amd_telemetry.parse(
        recorded.amd_smi_metric(cpx=False), recorded.amd_smi_list(1), recorded.amd_smi_static(1, "SPX")
    )
    assert (gpu.pci, gpu.uuid, gpu.partition, gpu.model) == ("0000:c1:00.0", "u0", "", "AMD Instinct MI300X")
    assert gpu.values == {
        "busy_ratio": 0.8,
        "dram_active_ratio": 0.1,
        "power_watts": 550.0,
        "energy_joules_total": 9.5,
        "temperature_celsius": 64.0,
        "memory_temperature_celsius": 55.0,
        "ecc_correctable_errors_total": 5.0,
        "ecc_uncorrectable_errors_total": 0.0,
        "pcie_bytes_per_second": 1e8,
        "pcie_replays_total": 3.0,
        "memory_used_bytes": 2048.0 * MIB,
        "memory_total_bytes": 196_592.0 * MIB,
    }
    assert gpu.labelled["throttled"] == {"power": 1.0, "thermal": 0.0}


def test_partitions_in_cpx_have_what_they_say_and_no_zeros() -> None:
    devices = amd_telemetry.parse(
        recorded.amd_smi_metric(cpx=True), recorded.amd_smi_list(3), recorded.amd_smi_static(3, "CPX")
    )
    assert [one.partition for one in devices] == ["0", "1", "2"]
    assert devices[1].values.keys() == {"memory_used_bytes", "memory_total_bytes"}
    assert "kfd-3" in devices[1].aliases


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", '[{"gpu": "x"}]', '[{"gpu": 0, "power": {"socket_power": "a"}}]']
)
def test_what_amd_smi_cannot_have_meant_is_an_error(text: str) -> None:
    with pytest.raises(MetricsError):
        amd_telemetry.parse(text)


def test_metrics_of_something_else_are_an_error() -> None:
    with pytest.raises(MetricsError, match="no series of a GPU"):
        device_readings(samples("go_goroutines 8\n"))


def test_names_of_the_table_are_those_of_prometheus_with_base_units() -> None:
    for field in FIELDS:
        assert field.metric.endswith("_total") == (field.kind == "counter"), field.name
        assert field.description.endswith("."), field.name
        assert field.nvml or field.amd_smi or field.exported, field.name
    assert len({field.name for field in FIELDS}) == len(FIELDS)


def test_the_page_lists_each_field_as_the_table_has_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    for field in FIELDS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{field.metric}` |")]
        assert f"| {field.kind} | {field.description} |" in row
        assert all(f"`{name}`" in row for exported in field.exported for name in exported.names)
