"""How busy GPUs are now, out of a real Prometheus that had scraped both vendors' exporters."""

import time
from pathlib import Path

import pytest
from controlplane.processes import wait_for
from exposition_server import scraping, serving
from prometheus_server import RunningPrometheus

from kopt.core.scheduling.gpu_map import GpuActivity
from kopt.data.demand.prometheus import PrometheusError, Server
from kopt.data.gpu_activity import NEWEST_S, read_gpu_activity

SAMPLES = {
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname="n1",gpu="0",namespace="team",pod="train",container="c"}': 0.75,
    'DCGM_FI_DEV_GPU_UTIL{Hostname="n1",gpu="0",namespace="team",pod="train",container="c"}': 30,
    'DCGM_FI_DEV_GPU_UTIL{Hostname="n1",gpu="1",namespace="monitoring",exported_namespace="team",exported_pod="b"}': 40,
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname="n1",gpu="2",GPU_I_ID="7"}': 0.2,
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname="n1",gpu="2",GPU_I_ID="9"}': 0.6,
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname="n1",gpu="3"}': 9e18,
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="4"}': 0.5,
    'gpu_gfx_activity{hostname="n2",gpu_id="0",namespace="team",pod="infer"}': 12,
    'kopt_gpu_busy_ratio{node="n3",gpu="0",uuid="GPU-a",namespace="team",pod="agent-read"}': 0.5,
    'kopt_gpu_busy_ratio{node="n4",gpu="0",uuid="GPU-b",namespace="",pod=""}': 0.25,
}


@pytest.mark.services
def test_the_better_series_of_each_gpu_says_how_busy_it_is_and_whose(tmp_path: Path) -> None:
    now_s = int(time.time())
    lines = [f"{series} {value} {now_s - 30}" for series, value in SAMPLES.items()]
    lines += [f'gpu_gfx_activity{{hostname="gone",gpu_id="0"}} 50 {now_s - 2 * NEWEST_S}']
    prometheus = RunningPrometheus(tmp_path, "\n".join([*sorted(lines), "# EOF\n"]))
    try:
        with Server(prometheus.url) as server:
            activity = read_gpu_activity(server, now_s)
    finally:
        prometheus.stop()
    assert activity == {
        "n1": {
            "0": GpuActivity(0.75, ("team", "train")),
            "1": GpuActivity(0.4, ("team", "b")),
            "2": GpuActivity(0.6),
        },
        "n2": {"0": GpuActivity(0.12, ("team", "infer"))},
        "n3": {"0": GpuActivity(0.5, ("team", "agent-read"))},
        "n4": {"0": GpuActivity(0.25)},
    }


@pytest.mark.services
def test_a_pod_that_has_ended_does_not_keep_its_gpu_busy(tmp_path: Path) -> None:
    """Its last sample is younger than ``NEWEST_S``; the next scrape had another pod in its place."""
    busy = ['kopt_gpu_busy_ratio{node="n1",gpu="0",namespace="team",pod="ended"} 0.9']
    with serving(busy) as target:
        prometheus = RunningPrometheus(tmp_path, configuration=scraping(target))
        try:
            with Server(prometheus.url) as server:
                read = lambda: read_gpu_activity(server).get("n1")  # noqa: E731
                assert wait_for(read, what="a scrape") == {"0": GpuActivity(0.9, ("team", "ended"))}
                busy[:] = ['kopt_gpu_busy_ratio{node="n1",gpu="0",namespace="team",pod="next"} 0.01']
                next_pod = {"0": GpuActivity(0.01, ("team", "next"))}
                wait_for(lambda: read() == next_pod, timeout_s=20, what="the next pod's")
        finally:
            prometheus.stop()


def test_a_server_that_is_away_is_an_error_with_its_address() -> None:
    with Server("http://127.0.0.1:9", retries=0) as server, pytest.raises(PrometheusError, match=r"127\.0\.0\.1:9"):
        read_gpu_activity(server)
