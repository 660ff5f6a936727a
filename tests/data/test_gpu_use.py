"""GPU use of pods from a real Prometheus with the series that exporters write."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.core.units import GIB, MIB
from kopt.data.demand.prometheus import PrometheusError, Server
from kopt.data.gpu_use import NoGpuSeriesError, Readings, read_gpu_use
from tests.gpu_history import DAY_S, Metric, amd, dcgm, history
from tests.prometheus_server import RunningPrometheus

pytestmark = pytest.mark.services
USED, ENGINE, UTILIZATION = "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
Ask = Callable[..., Readings]


def spike(mebibytes: float, peak: float) -> Callable[[float], float]:
    """Once, a day ago."""
    return lambda left: peak if left == DAY_S else mebibytes


def held_in_turns(first: bool) -> Callable[[float], float]:
    return lambda left: 1024.0 if (left > DAY_S) is first else math.nan


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    shared, turns, mig = {"UUID": "GPU-shared"}, {"UUID": "GPU-turns"}, {"GPU_I_ID": "3", "GPU_I_PROFILE": "3g.40gb"}
    served = RunningPrometheus(
        tmp_path_factory.mktemp("prometheus"),
        history(
            Metric(USED, dcgm("lab", "train-0"), spike(10_000, 20_480)),
            Metric(USED, dcgm("lab", "train-0", 1), 8_000),
            Metric(ENGINE, dcgm("lab", "train-0"), 0.25),
            Metric(UTILIZATION, dcgm("lab", "train-0"), 100),
            Metric(USED, dcgm("lab", "moved", moved=True), 4_096, span_s=3 * 3600),
            Metric(UTILIZATION, dcgm("lab", "moved", moved=True), lambda left: 80 if left < 1800 else 40),
            Metric(USED, dcgm("other", "nan"), math.nan),
            Metric(USED, dcgm("other", "gap"), lambda left: math.nan if left > DAY_S else 1024),
            Metric(USED, dcgm("other", "mig", **mig), 1024),
            Metric(USED, dcgm("other", "twice"), 1024),
            Metric(USED, dcgm("other", "twice", moved=True, job="gpu-operator"), 2048),
            Metric(USED, dcgm("other", "here", **shared), 3000),
            Metric(USED, dcgm("other", "there", **shared), 3000),
            Metric(USED, dcgm("other", "before", **turns), held_in_turns(True)),
            Metric(USED, dcgm("other", "after", **turns), held_in_turns(False)),
            Metric("gpu_used_vram", amd("other", "mib"), 16_384),
            Metric("gpu_total_vram", amd("other", "mib"), 196_592),
            Metric("gpu_gfx_activity", amd("other", "mib"), 50),
            Metric("amd_gpu_used_vram", amd("other", "bytes", 1), 512 * MIB),
            Metric("amd_gpu_total_vram", amd("other", "bytes", 1), 192 * GIB),
            Metric("gpu_used_vram", amd("other", "cpx", 2, gpu_compute_partition_type="cpx"), 1024),
        ),
    )
    try:
        with Server(served.url) as server:
            yield lambda namespace="", since_s=2 * DAY_S: read_gpu_use(server, since_s, namespace)
    finally:
        served.stop()


def test_the_peak_of_any_gpu_and_the_better_series_of_activity_count(ask: Ask) -> None:
    use = ask("lab").uses["lab", "train-0"]
    assert (use.peak_bytes, use.pods) == (20_480 * MIB, 1)
    assert use.measured_s == pytest.approx(2 * DAY_S, rel=0.02)
    assert (use.activity, use.activity_high) == (0.25, 0.25)
    assert (use.gpu, use.jobs) == ("NVIDIA H100 80GB HBM3", ("dcgm-exporter",))
    assert not use.partition
    assert not use.shared


def test_labels_that_the_scrape_moved_aside_name_the_pod(ask: Ask) -> None:
    readings = ask("lab")
    assert readings.uses.keys() == {("lab", "train-0"), ("lab", "moved")}
    use = readings.uses["lab", "moved"]
    assert use.measured_s == pytest.approx(3 * 3600, rel=0.2)
    assert use.activity == pytest.approx(0.4, abs=0.02)
    assert use.activity_high == pytest.approx(0.8)


def test_nan_is_no_reading_and_gaps_are_no_time(ask: Ask) -> None:
    readings = ask("other")
    assert readings.not_numbers == {("other", "nan")}
    assert readings.uses["other", "gap"].measured_s == pytest.approx(DAY_S, rel=0.03)


def test_parts_of_gpus_and_shared_ones_are_marked(ask: Ask) -> None:
    uses = ask().uses
    assert {pod for (_, pod), use in uses.items() if use.partition} == {"mig", "cpx"}
    assert {pod for (_, pod), use in uses.items() if use.shared} == {"here", "there"}


def test_of_two_exporters_the_higher_reading_counts(ask: Ask) -> None:
    use = ask("other").uses["other", "twice"]
    assert (use.peak_bytes, use.jobs) == (2 * GIB, ("dcgm-exporter", "gpu-operator"))


def test_amds_exporter_is_read_in_mebibytes_and_in_bytes(ask: Ask) -> None:
    uses = ask("other").uses
    assert (uses["other", "mib"].peak_bytes, uses["other", "mib"].activity) == (16 * GIB, 0.5)
    assert uses["other", "bytes"].peak_bytes == 512 * MIB
    assert uses["other", "mib"].gpu == "AMD Instinct MI300X OAM"


def test_a_namespace_without_readings_is_empty_where_an_exporter_is_scraped(ask: Ask) -> None:
    readings = ask("nobody")
    assert (dict(readings.uses), readings.is_named) == ({}, False)


def test_a_prometheus_without_exporters_names_both(tmp_path: Path) -> None:
    served = RunningPrometheus(tmp_path)
    try:
        with Server(served.url) as server, pytest.raises(NoGpuSeriesError) as caught:
            read_gpu_use(server, 3600)
    finally:
        served.stop()
    assert "dcgm-exporter" in str(caught.value)
    assert "device-metrics-exporter" in str(caught.value)
    with Server(served.url, retries=0) as server, pytest.raises(PrometheusError, match="cannot be reached"):
        read_gpu_use(server, 3600)
