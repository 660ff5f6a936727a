"""``kopt recommend --running --prometheus``: what pods used, read from a real Prometheus, beside the estimate."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kopt.cli.training.command import TrainInputs
from kopt.cli.training.sizing import COMMAND
from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import DEPLOYMENTS, NODES, PODS
from kopt.cluster.objects.kaiwo_workloads import GPU_WORKLOADS
from kopt.core.settings import Settings
from kopt.core.units import GIB, MIB
from kopt.data.memory.commands import read_measured_commands
from tests.cli import running_cluster
from tests.cli.running_cluster import Known, Kopt, deployment, remembered, template
from tests.gpu_history import Metric, dcgm, history
from tests.prometheus_server import RunningPrometheus

pytestmark = [pytest.mark.cluster, pytest.mark.services]
url, known, kopt = running_cluster.url, running_cluster.known, running_cluster.kopt
USED = "DCGM_FI_DEV_FB_USED"
PODS_OF = {
    "train.py": ("low", "higher", "short", "silent", "nan", "mig", "twice"),
    "./binary": ("binary", "hasty"),
}


@pytest.fixture
async def node(known: Known) -> AsyncIterator[str]:
    """Without a label that says which GPUs it has: the exporter does."""
    name = f"node-{known.namespace}"
    await known.kube.create(NODES, {"metadata": {"name": name}})
    yield name
    await known.kube.delete(NODES, name)


@pytest.fixture
async def pods(known: Known, node: str) -> AsyncIterator[None]:
    """Some of a program that the endpoint can size, some of one that it cannot."""
    for gpu in (None, "h100"):
        await remembered(known, template("python", "train.py"), gpu)
    names = [(name, program) for program, several in PODS_OF.items() for name in several]
    for name, program in names:
        command = ("python", program) if program.endswith(".py") else (program,)
        await _create(known.kube, known.namespace, name, template(*command, nodeName=node))
    yield
    for name, _ in names:
        await known.kube.delete(PODS, name, known.namespace, grace_s=0)


async def _create(kube: Kube, namespace: str, name: str, pod: dict[str, Any]) -> None:
    await kube.create(PODS, pod | {"metadata": {"name": name}}, namespace)


@pytest.fixture
def prometheus(known: Known, tmp_path: Path) -> Iterator[str]:
    space, hours = known.namespace, 5 * 3600
    served = RunningPrometheus(
        tmp_path,
        history(
            Metric(USED, dcgm(space, "low"), 4096),
            Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", dcgm(space, "low"), 0.1),
            Metric(USED, dcgm(space, "higher", moved=True), 40 * 1024),
            Metric(USED, dcgm(space, "short"), 1024, span_s=hours),
            Metric(USED, dcgm(space, "nan"), math.nan),
            Metric(USED, dcgm(space, "mig", GPU_I_ID="1"), 1024),
            Metric(USED, dcgm(space, "twice"), 4096),
            Metric(USED, dcgm(space, "twice", job="second"), 5120),
            Metric(USED, dcgm(space, "binary"), 8192),
            Metric(USED, dcgm(space, "tool"), 6144),
            Metric(USED, dcgm(space, "hasty"), 8192, span_s=hours),
        ),
    )
    yield served.url
    served.stop()


async def test_what_pods_used_stands_beside_the_estimate_and_leads_the_advice(
    pods: None, prometheus: str, kopt: Kopt
) -> None:
    without = await kopt("recommend", "--running", "-o", "json")
    plain = {one["workload"]: one for one in json.loads(without.stdout)["recommendations"]}
    done = await kopt("recommend", "--running", "--prometheus", prometheus, "--since", "2d", "-o", "json")
    assert done.exit_code == 0, done.stderr
    rows = {one["workload"].removeprefix("pod/"): one for one in json.loads(done.stdout)["recommendations"]}
    assert rows.keys() == {name for several in PODS_OF.values() for name in several}
    assert "measured" not in plain["pod/low"]

    low = rows["low"]
    assert low["gpu"].startswith("H100-SXM5"), "as the exporter calls it"
    assert (low["measured"]["peak_bytes"], low["measured"]["pods"], low["method"]) == (4 * GIB, 1, "measured")
    assert low["measured"]["activity"] == pytest.approx(0.1)
    assert low["measured"]["measured_s"] == pytest.approx(2 * 86400, rel=0.02)
    assert low["peak_bytes"] > 9 * GIB, "the estimate stays to be seen"
    assert (low["kind"], low["profile"]) == ("partition", "1g.10gb"), "it was active a tenth of the time"
    assert low["patch"] != plain["pod/low"]["patch"]

    higher = rows["higher"]
    assert 40 * GIB <= higher["bytes"] <= 47 * GIB
    assert higher["high_bytes"] < 40 * GIB

    assert rows["short"]["bytes"] >= rows["short"]["high_bytes"] > 9 * GIB
    for name in ("silent", "nan"):
        assert rows[name]["bytes"] == plain[f"pod/{name}"]["bytes"] > 9 * GIB, "by the estimate alone"
    assert "only, where 24 h are needed" in " ".join(reason["message"] for reason in rows["short"]["reasons"])
    assert rows["silent"]["measured"]["peak_bytes"] is None
    assert "no series names its pods" in rows["silent"]["remarks"][0]
    assert "NaN" in rows["nan"]["remarks"][0]
    assert (rows["mig"]["kind"], rows["mig"]["patch"]) == ("none", None)
    assert "MIG" in rows["mig"]["why"]
    assert rows["twice"]["measured"]["peak_bytes"] == 5 * GIB
    assert 5 * GIB <= rows["twice"]["bytes"] < rows["twice"]["low_bytes"]
    assert "dcgm-exporter, second" in rows["twice"]["remarks"][0]

    assert plain["pod/binary"]["kind"] == "none"
    assert (rows["binary"]["kind"], rows["binary"]["peak_bytes"]) == ("fraction", None)
    assert 8 * GIB <= rows["binary"]["bytes"] <= 10 * GIB
    assert rows["hasty"]["kind"] == "none"
    assert "where 24 h are needed" in rows["hasty"]["why"]
    for row in rows.values():
        assert row["kind"] == "none" or row["bytes"] >= (row["measured"]["peak_bytes"] or 0)
        assert row["saved_milli_gpu"] is None or row["saved_milli_gpu"] >= 0, "never more than it asks for"

    table = await kopt("recommend", "--running", "--prometheus", prometheus, "--since", "2d")
    assert "measured" in table.stdout
    assert "4.0 GiB" in table.stdout
    shown = " ".join((table.stdout + table.stderr).split())
    assert "pod/silent: not measured, as no series names its pods" in shown
    assert "--prometheus URL" not in shown
    without = await kopt("recommend", "--running")
    assert "--prometheus URL" in " ".join((without.stdout + without.stderr).split())
    assert "measured" not in without.stdout.splitlines()[0]


@pytest.fixture
async def kaiwo(control_plane: Any, known: Known, pods: None) -> None:
    """Kaiwo measures one of the pods."""
    control_plane.install_crds("kaiwo")
    pod = await known.kube.get(PODS, "low", known.namespace)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "low", "uid": pod["metadata"]["uid"]}
    spec = {"workloadRef": reference, "gpuResources": {"amd.com/gpu": 1}, "preemptionPolicy": "OnPressure"}
    await known.kube.create(GPU_WORKLOADS, {"metadata": {"name": "gw-low"}, "spec": spec}, known.namespace)


async def test_what_is_held_and_not_used_is_listed_with_its_hours(
    pods: None, kaiwo: None, prometheus: str, kopt: Kopt
) -> None:
    done = await kopt(
        "idle", "--prometheus", prometheus, "--since", "2d", "--below", "20", "--price", "2", "-o", "json"
    )
    assert done.exit_code == 0, done.stderr
    (low,) = json.loads(done.stdout)["workloads"]
    assert (low["workload"], low["state"], low["gpus"]) == ("pod/low", "idle", 1.0)
    assert low["unused_gpu_hours"] == pytest.approx(48 * 0.9, rel=0.03)
    assert low["unused_cost"] == pytest.approx(2 * low["unused_gpu_hours"])
    assert (low["workload_class"], low["gives_up"], low["ended_by"]) == ("unattended", True, "Kaiwo")
    table = await kopt("idle", "--prometheus", prometheus, "--since", "2d", "--below", "5")
    assert "no workload that is measured holds GPUs without using them" in " ".join(
        (table.stdout + table.stderr).split()
    )
    whole = await kopt("idle", "--prometheus", prometheus, "--since", "2d", "--all", "-o", "json")
    states = {row["workload"]: row["state"] for row in json.loads(whole.stdout)["workloads"]}
    assert states["pod/low"] == "used"
    assert states["pod/silent"] == "unmeasured", "never called idle"


async def test_a_prometheus_that_is_away_or_scrapes_no_exporter_is_one_line(kopt: Kopt, tmp_path: Path) -> None:
    done = await kopt("recommend", "--running", "--prometheus", "http://127.0.0.1:9")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "measured use cannot be read: http://127.0.0.1:9 cannot be reached" in done.stderr
    served = RunningPrometheus(tmp_path)
    try:
        done = await kopt("recommend", "--running", "--prometheus", served.url)
    finally:
        served.stop()
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no series of a GPU exporter in 7 days" in done.stderr
    assert "dcgm-exporter" in done.stderr
    assert "device-metrics-exporter" in done.stderr
    done = await kopt("recommend", "train.py", "--prometheus", served.url)
    assert done.exit_code == 2
    assert "--running" in done.stderr


async def test_pods_of_a_deployment_count_together_and_some_of_them_are_not_all(
    known: Known, node: str, kopt: Kopt, tmp_path: Path
) -> None:
    serve = template("python", "serve.py", nodeName=node)
    await remembered(known, serve, "h100")
    await known.kube.create(DEPLOYMENTS, deployment("chat", serve), known.namespace)
    names = await _names(known)
    all_of_them = [Metric(USED, dcgm(known.namespace, name), 3072 + 1024 * at) for at, name in enumerate(names)]
    for number, measured in enumerate((all_of_them, all_of_them[:1])):
        folder = tmp_path / str(number)
        folder.mkdir()
        served = RunningPrometheus(folder, history(*measured))
        try:
            done = await kopt("recommend", "--running", "--prometheus", served.url, "--since", "2d", "-o", "json")
        finally:
            served.stop()
        (row,) = json.loads(done.stdout)["recommendations"]
        assert row["workload"] == "deployment/chat"
        assert (row["measured"]["pods"], row["measured"]["of_pods"]) == (len(measured), 2)
        if len(measured) == 2:
            assert row["measured"]["peak_bytes"] == 4 * GIB
            assert row["method"] == "measured"
            assert row["saved_milli_gpu"] == 2 * (1000 - row["milli_gpu"]) > 0
        else:
            assert row["method"] != "measured"
            assert "1 of 2 pods were measured" in row["remarks"][0]
            assert row["bytes"] >= row["high_bytes"]
    for name in names:
        await known.kube.delete(PODS, name, known.namespace, grace_s=0)


async def _names(known: Known) -> list[str]:
    async with asyncio.timeout(30):
        while len(pods := (await known.kube.list(PODS, known.namespace)).items) < 2:
            await asyncio.sleep(0.1)
    return sorted(pod["metadata"]["name"] for pod in pods)


async def test_what_pods_used_is_learned_from(
    known: Known, node: str, pods: None, prometheus: str, kopt_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("litgpt", "finetune_lora", "microsoft/phi-2", "--train.micro_batch_size", "2", "--out_dir", "/out/1")
    await _create(known.kube, known.namespace, "tool", template(*command, nodeName=node))
    inputs = TrainInputs(Settings(home=kopt_home), None, None, prometheus, "", "service", "2d", "5m", True)
    await asyncio.to_thread(COMMAND.source, inputs)
    await known.kube.delete(PODS, "tool", known.namespace, grace_s=0)
    table = kopt_home / "measured" / "sizing"
    mine = {(run.command, run.gpu, run.measured // MIB) for run in read_measured_commands(table / "runs.csv")}
    line = "litgpt finetune_lora microsoft/phi-2 --train.micro_batch_size 2 --out_dir '*'"
    assert mine == {(line, "H100-SXM5-80GB", 6144)}
    scripts = {(run.command, run.measured // MIB) for run in read_measured_commands(table / "scripts.csv")}
    assert scripts == {("python train.py", 40 * 1024), ("./binary", 8192)}, "the highest of pods of one command"
    said = capfd.readouterr().err
    reasons = {
        "no series names its pods": ("silent", "nan"),
        "on a part of a GPU": ("mig",),
        "less than 24 h": ("short", "hasty"),
    }
    for reason, names in reasons.items():
        (sentence,) = [sentence for sentence in said.splitlines() if reason in sentence]
        assert all(f"{known.namespace}/pod/{name}" in sentence for name in names), sentence
