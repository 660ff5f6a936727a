"""Logs through a real API server and a kubelet: pods are found, read to their end, and annotated."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_server import served
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from local_claims import claim_folder
from logtail_endpoint import Endpoint
from replicas import KOPT
from serving.conftest import MemorySource, StandInModel, no_store

from kopt.core.settings import Settings
from kopt.models.registry.loading import load_predictor
from kopt.serving.checkpoint.service import CheckpointService
from kopt.serving.demand.feature_lookup import StoredFeatures
from kopt.serving.endpoint.app import create_app
from kopt.serving.endpoint.assemble import Parts, assemble

pytestmark = pytest.mark.cluster
GPU = "nvidia.com/gpu"


@pytest.fixture
def endpoint() -> Iterator[tuple[Endpoint, str]]:
    found = Endpoint()
    with served(found) as url:
        yield found, url


def pod(space: str, name: str, script: str, selector: Any, gpus: str = "1", **annotations: str) -> dict[str, Any]:
    container = {"name": "trainer", "image": "train", "command": ["sh", "-c", script]}
    resources = {"resources": {"limits": {GPU: gpus}}} if gpus != "0" else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "annotations": {"kaiwo.ai/job": "llama", **annotations}},
        "spec": {"restartPolicy": "Never", "nodeSelector": selector, "containers": [container | resources]},
    }


def test_gpu_pods_are_followed_to_their_end_and_annotated(
    control_plane: ControlPlane, endpoint: tuple[Endpoint, str], tmp_path: Path
) -> None:
    kept, url = endpoint
    kept.says = {"state": "TRAIN", "safe": True, "last_durable_step": 3}
    api = control_plane.api
    space = api.space("streamed", {"kaiwo.ai/managed": "true"})
    job = f"{space}/llama"
    end = tmp_path / "end"
    script = f"for n in 1 2 3 4 5; do echo step $n; done; while [ ! -e {end} ]; do sleep 0.1; done; echo done"
    arguments = [
        "agent",
        "logtail",
        "cluster",
        "--namespace",
        space,
        "--mode",
        "annotate",
        "--predictions",
        url,
        "--state",
        str(tmp_path / "state.json"),
    ]
    with Kubelet(control_plane, resources={GPU: "8"}) as node:
        server = control_plane.start_server(
            "logtail-streams", [*KOPT, *arguments], {"KUBECONFIG": str(control_plane.kubeconfig)}
        )
        try:
            made = [
                api.create(pod(space, "llama-0", script, node.selector)),
                api.create(pod(space, "llama-1", script, node.selector, **{"kaiwo.ai/mode": "observe"})),
            ]
            api.create(pod(space, "cpu-0", "echo private", node.selector, gpus="0"))
            steps = [f"step {n}" for n in range(1, 6)]
            sources = [f"{one['metadata']['name']}@{one['metadata']['uid'][:8]}/trainer" for one in made]
            wait_for(lambda: all(kept.lines(job, one) == steps for one in sources), what="the steps")
            end.touch()
            wait_for(lambda: all(kept.lines(job, one) == [*steps, "done"] for one in sources), what="the last lines")
            assert {source.partition("@")[0] for _, source in kept.taken} == {"llama-0", "llama-1"}
            assert kept.conflicting == 0

            def said(name: str) -> dict[str, str]:
                return dict(api.get("v1", "Pod", name, space)["metadata"]["annotations"])

            wait_for(lambda: said("llama-0").get("kaiwo.ai/last-checkpoint-step") == "3", what="annotations")
            assert "kaiwo.ai/checkpoint-state" not in said("llama-1")
            for name in ("llama-0", "llama-1"):
                api.delete("v1", "Pod", name, space, gracePeriodSeconds=0)
            wait_for(lambda: f"{job}: ended" in server.log.read_text(), what="the job is left")
        finally:
            server.stop()


SILENT = """
import datetime, os, pathlib, time

log = pathlib.Path({logs!r}, "{space}_llama-0_" + os.environ["POD_UID"], "trainer", "0.log")
log.parent.mkdir(parents=True)
out, signals, step = pathlib.Path("/checkpoints/run-1"), pathlib.Path({signals!r}), 0

def train(steps):
    global step
    for _ in range(steps):
        step += 1
        time.sleep(0.1)
        with log.open("a") as file:
            at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            file.write(f"{{at}} stdout F step {{step}}/100000 loss 1.2\\n")

train(20)
for _ in range(2):
    checkpoint = out / f"checkpoint-{{step}}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").write_bytes(b"o" * 100_000)
    with (checkpoint / "model.safetensors").open("wb") as file:
        while True:
            file.write(b"w" * 10_000)
            file.flush()
            train(5)
            if file.tell() >= 100_000 and not (signals / "writing").exists():
                break
    while not (signals / "writing").exists():
        train(1)
while True:
    train(1)
"""
"""A trainer that prints its steps alone and saves beside them; its second save lasts while a file is there."""


@contextlib.contextmanager
def real_endpoint(home: Path) -> Iterator[str]:
    """The endpoint itself with the shipped model."""
    shipped: Any = load_predictor("checkpoint", "shipped")
    models = {"demand": StandInModel, "checkpoint": lambda: shipped}
    parts = Parts(MemorySource({}), StoredFeatures(no_store), refresh_s=3600, shipped=models)
    endpoint = assemble(Settings(home=home), parts)
    endpoint.start()
    try:
        endpoint.service(CheckpointService).refresh()
        with served(create_app(endpoint, manage=False)) as url:
            yield url
    finally:
        endpoint.stop()


@pytest.mark.slow
def test_a_trainer_that_saves_without_a_word_is_safe_by_its_files_and_held_while_it_writes(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    api = control_plane.api
    space = api.space("silent", {"kaiwo.ai/managed": "true"})
    logs, signals = tmp_path / "logs", tmp_path / "signals"
    logs.mkdir()
    signals.mkdir()
    with real_endpoint(tmp_path / "home") as url, Kubelet(control_plane, resources={GPU: "8"}) as node:
        claim_folder(control_plane, space, "checkpoints", tmp_path / "local", node)
        arguments = ["agent", "logtail", "node", "--node", node.name, "--root", str(logs), "--predictions", url]
        server = control_plane.start_server(
            "logtail-node",
            [*KOPT, *arguments, "--volumes", str(node.pods)],
            {"KUBECONFIG": str(control_plane.kubeconfig)},
        )

        def status() -> dict[str, Any]:
            answer = httpx.get(f"{url}/v1/checkpoint", trust_env=False, timeout=60.0).json()
            jobs = (job for job in answer["jobs"] if job["job"] == f"{space}/llama")
            return next(jobs, {"safe": False, "reason": ""})

        try:
            program = SILENT.format(logs=str(logs), signals=str(signals), space=space)
            silent = pod(space, "llama-0", "", node.selector)
            (container,) = silent["spec"]["containers"]
            container |= {
                "command": [sys.executable, "-c", program],
                "env": [{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
                "volumeMounts": [{"name": "out", "mountPath": "/checkpoints"}],
            }
            silent["spec"]["volumes"] = [{"name": "out", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
            api.create(silent)
            wait_for(lambda: status()["safe"], what="it is safe by its files")
            assert status()["last_durable_step"] == 20
            (signals / "writing").touch()
            reason = f"checkpoint folder shows that {space}-checkpoints/run-1/checkpoint-"
            held = wait_for(lambda: reason in (now := status())["reason"] and now, what="it is held while it writes")
            assert not held["safe"]
            assert "is being written" in held["reason"]
        finally:
            server.stop()
