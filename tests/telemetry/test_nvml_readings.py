"""The process that reads NVML, over the stand-in for the driver's library."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nvml_standin.devices import Devices

from kopt.agents.telemetry.sources import ProgramSource, TelemetryError
from kopt.core.hardware.gpu_telemetry import BY_NAME
from kopt.formats.gpu_metrics.device_reading import DeviceReading

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler builds the stand-in of NVML")
Read = Callable[[], Awaitable[Sequence[DeviceReading]]]


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    result = Devices(tmp_path / "gpus", gpus=2)
    for activity in result.state.activity[:2]:
        activity.gpm, activity.busy, activity.sm, activity.tensor, activity.dram = 1, 90, 60, 30, 45
        activity.power_mw, activity.energy_mj, activity.celsius, activity.used = 650_000, 12_000, 71, 3 << 30
        activity.reasons, activity.pcie_kib = 0x04, 2048
    for name, value in result.environment.items():
        monkeypatch.setitem(os.environ, name, value)
    return result


@asynccontextmanager
async def reading(limit_s: float = 5.0) -> AsyncIterator[Read]:
    source = ProgramSource("nvml", limit_s)
    try:
        yield source.read
    finally:
        await source.close()


async def test_a_gpu_is_read_in_the_units_of_the_table(devices: Devices) -> None:
    async with reading() as read:
        await read()
        devices.state.activity[0].link_kib += 1 << 20
        first, _ = await read()
    assert first.uuid == devices.uuid(0)
    assert first.pci == "0000:1a:00.0"
    expected = {
        "busy_ratio": 0.9,
        "sm_active_ratio": 0.6,
        "tensor_active_ratio": 0.3,
        "dram_active_ratio": 0.45,
        "power_watts": 650.0,
        "energy_joules_total": 12.0,
        "temperature_celsius": 71.0,
        "memory_temperature_celsius": 76.0,
        "memory_used_bytes": float(3 << 30),
        "memory_total_bytes": float(80 << 30),
        "pcie_bytes_per_second": float(4 << 20),
        "link_bytes_per_second": float(2 << 30),
        "last_xid": 0.0,
    }
    assert expected.items() <= first.values.items()
    assert first.labelled["throttled"] == {
        "power": 1.0,
        "hardware": 0.0,
        "sync-boost": 0.0,
        "thermal": 0.0,
        "power-brake": 0.0,
    }
    assert first.values.keys() <= BY_NAME.keys()


async def test_before_hopper_there_is_no_activity_of_sms(devices: Devices) -> None:
    devices.state.activity[0].gpm = 0
    devices.state.activity[0].moving = 20
    async with reading() as read:
        await read()
        first, second = await read()
    assert (first.values["busy_ratio"], first.values["dram_active_ratio"]) == (0.9, 0.2)
    assert "sm_active_ratio" not in first.values
    assert "sm_active_ratio" in second.values


async def test_instances_have_their_own_memory_and_activity_and_the_gpu_has_none(devices: Devices) -> None:
    devices.cut(1, ("1g.10gb", 0), ("3g.40gb", 4))
    devices.state.activity[1].instance_used[1] = 7 << 30
    async with reading() as read:
        await read()
        _, whole, small, large = await read()
    assert [(one.gpu, one.partition, one.profile) for one in (whole, small, large)] == [
        ("1", "", ""),
        ("1", "1", "1g.10gb"),
        ("1", "2", "3g.40gb"),
    ]
    assert not {"memory_used_bytes", "busy_ratio", "sm_active_ratio"} & whole.values.keys()
    assert whole.values["power_watts"] == 650.0
    assert (small.values["memory_used_bytes"], large.values["memory_used_bytes"]) == (0.0, float(7 << 30))
    assert large.values["sm_active_ratio"] == 0.6
    assert "power_watts" not in large.values
    assert "gpu-1-mig-9-4" in large.aliases


async def test_a_re_cut_is_followed(devices: Devices) -> None:
    async with reading() as read:
        await read()
        devices.cut(0, ("7g.80gb", 0))
        assert [one.partition for one in await read()] == ["", "1", ""]
        devices.state.gpus[0].mode = 0
        assert [one.partition for one in await read()] == ["", ""]


async def test_a_gpu_that_vanishes_is_left_out_and_the_others_are_read(devices: Devices) -> None:
    async with reading() as read:
        await read()
        devices.state.activity[0].lost = 1
        (left,) = await read()
    assert left.uuid == devices.uuid(1)


async def test_a_gpu_that_vanishes_says_why(devices: Devices) -> None:
    async with reading() as read:
        await read()
        devices.xid(0, 79)
        devices.state.activity[0].lost = 1
        left, lost = await read()
    assert left.uuid == devices.uuid(1)
    assert (lost.uuid, lost.gpu, lost.pci, lost.values) == (devices.uuid(0), "0", "0000:1a:00.0", {})
    assert lost.labelled == {"xid_errors_total": {"79": 1.0}}


async def test_xids_come_between_readings_and_stay(devices: Devices) -> None:
    source = ProgramSource("nvml")
    try:
        assert await source.read_xids() == ()
        await source.read()
        devices.xid(1, 79, 45)
        (struck,) = await source.read_xids()
        assert (struck.uuid, set(struck.values)) == (devices.uuid(1), {"last_xid"})
        assert struck.labelled == {"xid_errors_total": {"79": 1.0, "45": 1.0}}
        _, struck = await source.read()
        assert struck.labelled["xid_errors_total"] == {"79": 1.0, "45": 1.0}
    finally:
        await source.close()


async def test_a_storm_of_xids_is_counted_by_code_and_bounded(devices: Devices) -> None:
    async with reading() as read:
        await read()
        devices.xid(0, 79, 31, 31)
        first, second = await read()
        assert first.labelled["xid_errors_total"] == {"31": 2.0, "79": 1.0}
        assert first.values["last_xid"] == 79.0
        assert second.labelled["xid_errors_total"] == {}
        devices.xid(0, *range(100, 100 + 64))
        devices.state.activity[0].xids = 5000
        begin_s = asyncio.get_running_loop().time()
        first, _ = await read()
        assert asyncio.get_running_loop().time() - begin_s < 5
        assert sum(first.labelled["xid_errors_total"].values()) == 1003
        assert len(first.labelled["xid_errors_total"]) <= 33


async def test_a_driver_that_hangs_is_given_up_and_asked_again(devices: Devices) -> None:
    async with reading(limit_s=1.0) as read:
        await read()
        devices.state.activity[1].hangs = 1
        with pytest.raises(TelemetryError) as caught:
            await read()
        assert caught.value.reason == "timeout"
        devices.state.activity[1].hangs = 0
        assert len(await read()) == 2


async def test_without_a_driver_the_hardware_is_absent(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "LD_LIBRARY_PATH", "/nowhere")
    async with reading() as read:
        with pytest.raises(TelemetryError) as caught:
            await read()
    assert caught.value.reason == "absent"


async def test_what_is_no_reading_is_an_error_and_the_process_ends(tmp_path: Path) -> None:
    program = tmp_path / "program"
    for text, reason in (("{}", "damaged"), ("[{]", "damaged"), ('[{"gpu": 3}]', "damaged")):
        program.write_text(f"#!/bin/sh\nread line; echo '{text}'; sleep 100\n")
        program.chmod(0o755)
        source = ProgramSource("nvml", 5.0, [str(program)])
        with pytest.raises(TelemetryError) as caught:
            await source.read()
        assert caught.value.reason == reason
        assert source._process is None
