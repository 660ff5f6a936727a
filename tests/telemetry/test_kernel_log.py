"""Errors of GPUs in the kernel log: records as the kernel makes them, lines as drivers have written them."""

import asyncio
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.agents.telemetry.exposition import GpuIdentity
from kopt.agents.telemetry.kernel_log import KernelLog, pci_device, read_record, silent_gpus, with_kernel_log
from kopt.agents.telemetry.process import ProcessSettings, Telemetry
from kopt.agents.telemetry.sources import Source
from kopt.agents.telemetry.sources import samples as series_of
from kopt.formats.gpu_metrics.device_reading import DeviceReading
from kopt.formats.gpu_metrics.health import read_health

OLD, BUS, ON = "NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:3b:00", "gpu-7"
FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CLEANED = "NVRM: Xid (PCI:0000:3b:00): 45, pid=7194, name=python, Ch 00000008"
FAULT = "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=7194, name=python, Ch 0000000a, intr 00000000. MMU Fault"


def record(sequence: int, message: str, priority: int = 3, notes: str = "") -> bytes:
    return f"{priority},{sequence},{1000 * sequence},-;{message}\n{notes}".encode()


class Ring:
    """What reads of /dev/kmsg answer, one after the other; then that there is nothing."""

    def __init__(self, *answers: bytes | int) -> None:
        self.answers = list(answers)

    def __call__(self, _: int, size: int) -> bytes:
        assert size >= 8192
        answer: bytes | int = self.answers.pop(0) if self.answers else errno.EAGAIN
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def log_of(*answers: bytes | int) -> KernelLog:
    log = KernelLog(Path(os.devnull), Ring(*answers))
    log.read_new()
    log.close()
    return log


def lines(*messages: str) -> KernelLog:
    return log_of(*(record(number, message) for number, message in enumerate(messages)))


@pytest.mark.parametrize(
    ("line", "pci", "code"),
    [
        (OLD, "0000:03:00", "14"),
        (FALLEN, BUS, "79"),
        (FAULT, BUS, "31"),
        ("NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000009 intr 00800000", "0000:01:00", "32"),
        ("NVRM: Xid (PCI:0008:C1:00): 94, pid=12, name=train, Contained: SM (0x1).", "0008:c1:00", "94"),
        ("NVRM: Xid (PCI:0000:4e:00): 79", "0000:4e:00", "79"),
    ],
)
def test_lines_of_nvidias_driver(line: str, pci: str, code: str) -> None:
    assert lines(line).xids == {pci: {code: 1}}


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:01:00: GPU-34d7319c-5b19-1e75-186d-c187099e4fe5",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO",
        f"python[77]: {FALLEN}",
        "NVRM: Xid (PCI:0000:3b:00): 791234567, a number that no code has",
        "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        # What a driver says of a GPU that sleeps.
        "amdgpu 0000:0b:00.0: 1048560 uncorrectable hardware errors detected in umc block",
    ],
)
def test_lines_that_are_no_error_of_a_gpu(line: str) -> None:
    log = lines(line)
    assert (log.records, log.addresses) == (1, frozenset())


def test_memory_errors_of_amds_gpus_are_those_in_all_and_those_that_are_new() -> None:
    log = lines(
        "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: {7}socket: 1, die: 0, 3 new uncorrectable hardware errors detected in umc block",
        "amdgpu 0000:c3:00.0: amdgpu: {7}socket: 1, 5 uncorrectable hardware errors detected in total in umc block",
        "amdgpu 0000:c3:00.0: {1}1 correctable hardware errors detected in gfx block",
    )
    errors = {"ecc_uncorrectable_errors_total": 5.0, "ecc_correctable_errors_total": 1.0}
    assert log.errors("0000:c3:00") == errors
    (read,) = with_kernel_log([DeviceReading("2", pci="0000:C3:00.0")], log)
    assert read.values == errors
    counted = DeviceReading("2", pci="0000:C3:00.0", values={"ecc_uncorrectable_errors_total": 9.0})
    assert with_kernel_log([counted], log)[0].values["ecc_uncorrectable_errors_total"] == 9.0


def test_only_the_kernels_own_records_count() -> None:
    # What a process writes has at least the facility of users, whatever it asks for.
    assert log_of(record(0, FALLEN, priority=(1 << 3) | 3)).xids == {}
    assert log_of(record(0, FALLEN, priority=6)).xids == {BUS: {"79": 1}}


def test_notes_and_further_flags_of_a_record_are_no_lines() -> None:
    notes = f" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n {FALLEN}\n"
    log = log_of(record(0, "nvidia 0000:3b:00.0: enabled", notes=notes), b"4,1,9,c,caller=T12;" + FALLEN.encode())
    assert log.xids == {BUS: {"79": 1}}


def test_what_was_overwritten_is_counted_and_reading_goes_on() -> None:
    log = log_of(record(5, FAULT), errno.EPIPE, record(9, FALLEN), errno.EINVAL, record(10, FAULT))
    assert (log.xids, log.lost, log.records) == ({BUS: {"31": 2, "79": 1}}, 3, 3)


def test_a_log_that_is_opened_anew_counts_nothing_twice() -> None:
    ring = Ring(record(0, FALLEN), errno.ENODEV)
    log = KernelLog(Path(os.devnull), ring)
    log.read_new()
    assert log.problem
    ring.answers = [record(0, FALLEN), record(1, FAULT)]
    log.read_new()
    assert (log.xids, log.problem) == ({BUS: {"79": 1, "31": 1}}, "")
    log.close()


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    log.read_new()
    assert "No such file" in log.problem


def test_the_log_of_this_machine_is_read_to_its_end() -> None:
    path = Path("/dev/kmsg")
    if not os.access(path, os.R_OK):
        pytest.skip("the kernel log is not ours to read")
    log = KernelLog(path)
    log.read_new()
    if log.problem:
        pytest.skip(log.problem)
    first = log.records
    log.read_new()
    log.close()
    assert first > 0
    assert log.records - first < first


@given(st.lists(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: record(1, f"NVRM: Xid ({text}"))))
def test_no_record_breaks_the_reader(answers: list[bytes]) -> None:
    log_of(*answers)


def test_a_flood_of_codes_and_gpus_has_an_end() -> None:
    codes = lines(*(f"NVRM: Xid (PCI:0000:3b:00): {code}, x" for code in range(200)))
    assert len(codes.xids[BUS]) == 33
    assert codes.xids[BUS]["other"] == 168
    gpus = lines(*(f"NVRM: Xid (PCI:{gpu:04x}:3b:00): 79, x" for gpu in range(500)))
    assert len(gpus.xids) == 128
    assert read_record(b"x" * 8192) is None


@pytest.mark.parametrize("written", ["00000000:3B:00.0", "0000:3b:00.0", "0000:3b:00"])
def test_one_address_however_it_is_written(written: str) -> None:
    assert pci_device(written) == BUS
    assert pci_device("") == pci_device("GPU-1") == ""


def test_an_xid_that_nvml_tells_of_too_counts_once() -> None:
    device = DeviceReading("0", pci=f"{BUS}.0", labelled={"xid_errors_total": {"31": 1.0, "45": 2.0}})
    (read,) = with_kernel_log([device], lines(FAULT, FAULT, FALLEN))
    assert read.labelled["xid_errors_total"] == {"31": 2.0, "45": 2.0, "79": 1.0}
    assert read.values["last_xid"] == 79.0


class Readings(Source):
    """A source that answers with what it has now."""

    def __init__(self, name: str, devices: Iterable[DeviceReading]) -> None:
        self.name, self.devices = name, tuple(devices)
        self.xids: tuple[DeviceReading, ...] = ()

    async def read(self) -> tuple[DeviceReading, ...]:
        return self.devices

    async def read_xids(self) -> tuple[DeviceReading, ...]:
        return self.xids

    async def close(self) -> None: ...


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Ring:
    answers = Ring()
    monkeypatch.setattr(
        "kopt.agents.telemetry.process.KernelLog", lambda path, **more: KernelLog(path, answers, **more)
    )
    return answers


def agent(source: Readings) -> Telemetry:
    return Telemetry(ProcessSettings(ON, lambda: [source], kernel_log=Path(os.devnull)))


def scraped(telemetry: Telemetry) -> str:
    async def run() -> None:
        await telemetry.read()
        assert telemetry._log is not None
        telemetry._log.read_new()
        telemetry.make()

    asyncio.run(run())
    return telemetry.text().decode()


def judged(
    text: str, before: dict[str, dict[str, float]] | None = None
) -> tuple[list[tuple[str, str, float]], dict[str, dict[str, float]]]:
    """What the health controller makes of a scrape, and what it remembers."""
    read = read_health([(name, own, value) for name, own, value in series_of(text)], before or {}, 100.0, 15.0)
    return [(item.code, item.gpu, item.amount) for item in read.evidence.get(ON, []) if item.amount], read.counters


GPUS = [
    DeviceReading(str(gpu), f"GPU-{gpu}", "H100", pci=f"0000:{address}:00.0", values={"pcie_replays_total": 0.0})
    for gpu, address in enumerate(("3b", "3c"))
]


def test_a_gpu_that_fell_off_the_bus_is_condemned_by_the_log_alone(ring: Ring) -> None:
    source = Readings("nvml", GPUS)
    telemetry = agent(source)
    evidence, before = judged(scraped(telemetry))
    assert evidence == []
    ring.answers = [record(0, FALLEN)]
    source.devices = tuple(GPUS[1:])
    text = scraped(telemetry)
    assert f'kopt_gpu_up{{gpu="0",model="H100",namespace="",node="{ON}"' in text.replace(" ", "")
    evidence, before = judged(text, before)
    assert evidence == [("XID_79", "0", 1.0)]
    assert judged(text, before)[0] == []


def test_an_agent_that_starts_anew_tells_nothing_twice_and_another_boot_counts_anew(ring: Ring) -> None:
    ring.answers = [record(0, FALLEN)]
    evidence, before = judged(scraped(agent(Readings("nvml", GPUS))))
    assert evidence == [("XID_79", "0", 1.0)]
    ring.answers = [record(0, FALLEN)]
    evidence, before = judged(scraped(agent(Readings("nvml", GPUS))), before)
    assert evidence == []
    booted = agent(Readings("nvml", GPUS))
    evidence, before = judged(scraped(booted), before)
    assert evidence == []
    ring.answers = [record(0, FALLEN)]
    assert judged(scraped(booted), before)[0] == [("XID_79", "0", 1.0)]


def test_where_the_exporter_gives_xids_the_log_adds_none(ring: Ring) -> None:
    ring.answers = [record(0, FALLEN)]
    giving = [DeviceReading(each.gpu, each.uuid, each.model, pci=each.pci, values={"last_xid": 0.0}) for each in GPUS]
    assert "xid_errors_total{" not in scraped(agent(Readings("exporter", giving)))
    ring.answers = [record(0, FALLEN)]
    assert 'xid="79"' in scraped(agent(Readings("exporter", GPUS)))


def recent_codes(text: str) -> set[str]:
    return {
        own["xid"] for name, own, _ in series_of(text) if name == "kopt_gpu_recent_xid_errors" and own["gpu"] == "0"
    }


def test_beside_an_exporter_a_fault_is_news_that_another_xid_follows(ring: Ring) -> None:
    def giving(code: float) -> list[DeviceReading]:
        return [replace(each, values={"last_xid": code if each.gpu == "0" else 0.0}) for each in GPUS]

    source = Readings("exporter", giving(0.0))
    telemetry = agent(source)
    assert recent_codes(scraped(telemetry)) == set()
    ring.answers = [record(0, FALLEN), record(1, CLEANED)]
    source.devices = tuple(giving(45.0))
    text = scraped(telemetry)
    assert recent_codes(text) == {"79", "45"}
    assert "kopt_gpu_xid_errors_total{" not in text


def test_when_an_xid_came_is_not_read_off_a_clock_that_drifts() -> None:
    """The log's own is two hours behind the monotonic clock, as may be after a year."""
    now_s, behind_s = 40_000_000.0, 7200.0
    raw_s = now_s - behind_s
    ring = Ring(f"3,1,{(raw_s - 60) * 1e6:.0f},-;{FAULT}".encode())
    log = KernelLog(Path(os.devnull), ring, lambda: now_s, lambda: raw_s)
    log.read_new()
    ring.answers = [f"3,2,{raw_s * 1e6:.0f},-;{FALLEN}".encode()]
    now_s += 10
    log.read_new()
    assert log.xid_at_s == {BUS: {"31": pytest.approx(40_000_000.0 - 60), "79": 40_000_010.0}}
    log.close()


def test_where_nothing_is_read_any_more_no_gpu_counts_as_lost(ring: Ring) -> None:
    clock_s = 1000.0
    source = Readings("exporter", GPUS)
    settings = ProcessSettings(ON, lambda: [source], kernel_log=Path(os.devnull), stale_s=60.0)
    telemetry = Telemetry(settings, lambda: clock_s)
    ring.answers = [record(0, FALLEN)]

    def up(text: str) -> dict[str, float]:
        return {own["gpu"]: value for name, own, value in series_of(text) if name == "kopt_gpu_up"}

    assert up(scraped(telemetry)) == {"0": 1.0, "1": 1.0}
    source.devices = tuple(GPUS[1:])
    assert up(scraped(telemetry)) == {"0": 0.0, "1": 1.0}
    clock_s += 61
    text = telemetry.text().decode()
    assert up(text) == {}
    # What the kernel says of them does not depend on it, and since when nothing is read is there to tell of.
    assert 'xid="79"' in text
    assert f'kopt_telemetry_last_reading_seconds{{node="{ON}"}}' in text


def test_beside_an_exporter_that_is_scraped_an_event_counts_once_also_when_it_falls_silent() -> None:
    own = {"node": ON, "gpu": "0", "xid": "79"}
    theirs = {"Hostname": ON, "gpu": "0"}
    both = [("kopt_gpu_xid_errors_total", own, 1.0), ("DCGM_FI_DEV_XID_ERRORS", theirs, 79.0)]
    first = read_health(both, {}, 1.0, 15.0)
    assert [(item.code, item.amount) for item in first.evidence[ON]] == [("XID_79", 1.0)]
    assert not read_health(both[:1], first.counters, 2.0, 15.0).evidence
    # One that gives everything but XIDs hides none.
    temperature = [("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", theirs, 0.0)]
    assert read_health(both[:1] + temperature, {}, 1.0, 15.0).evidence[ON][0].code == "XID_79"


def test_a_gpu_that_nvml_has_lost_is_down_and_its_last_xid_is_news(ring: Ring) -> None:
    said = DeviceReading("0", "GPU-0", "H100", labelled={"xid_errors_total": {"79": 1.0}})
    source = Readings("nvml", GPUS)
    telemetry = agent(source)
    assert "kopt_gpu_recent_xid_errors{" not in scraped(telemetry)
    source.devices = (GPUS[1], said)
    series = {
        (name, own["gpu"], own.get("xid", "")): value
        for name, own, value in series_of(scraped(telemetry))
        if "gpu" in own
    }
    assert series["kopt_gpu_up", "0", ""] == 0
    assert series["kopt_gpu_up", "1", ""] == 1
    assert series["kopt_gpu_recent_xid_errors", "0", "79"] == 1
    assert series["kopt_gpu_xid_errors_total", "0", "79"] == 1


def test_only_what_does_not_answer_is_silent() -> None:
    gpus = [GpuIdentity("0", "u0", "H100", f"{BUS}.0"), GpuIdentity("1", "u1", "H100", "0000:3c:00.0")]
    silent = with_kernel_log(silent_gpus([DeviceReading("1")], gpus), lines(FALLEN))
    assert [(each.gpu, each.values) for each in silent] == [("0", {"last_xid": 79.0})]


def test_between_readings_only_new_xids_make_a_new_text(ring: Ring) -> None:
    source = Readings("nvml", [DeviceReading("0", "GPU-a", pci=f"{BUS}.0", values={"power_watts": 400.0})])
    telemetry = agent(source)
    scraped(telemetry)
    ring.answers = [record(1, "usb 1-1: new device"), errno.EAGAIN]
    assert not asyncio.run(telemetry.read_faults())
    ring.answers = [f"3,2,{time.monotonic() * 1e6:.0f},-;{FALLEN}\n".encode(), errno.EAGAIN]
    assert asyncio.run(telemetry.read_faults())
    assert not asyncio.run(telemetry.read_faults())
    # What NVML tells of a GPU that does not answer any more does not bring it back.
    telemetry._devices, telemetry._lost = (), (DeviceReading("0", "GPU-a", pci=f"{BUS}.0"),)
    source.xids = (
        DeviceReading("0", "GPU-a", values={"last_xid": 48.0}, labelled={"xid_errors_total": {"48": 1.0}}),
        DeviceReading("9", "GPU-z", values={"last_xid": 48.0}, labelled={"xid_errors_total": {"48": 1.0}}),
    )
    assert asyncio.run(telemetry.read_faults())
    telemetry.make()
    text = telemetry.faults_text().decode()
    series = {(name, labels["gpu"], labels.get("xid")): value for name, labels, value in series_of(text)}
    recent = "kopt_gpu_recent_xid_errors"
    assert series == {("kopt_gpu_up", "0", None): 0.0, (recent, "0", "48"): 1.0, (recent, "0", "79"): 1.0}
