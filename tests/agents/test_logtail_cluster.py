"""Logs through a real API server and a kubelet: pods are found, read to their end, and annotated."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_server import served
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from logtail_endpoint import Endpoint

pytestmark = pytest.mark.cluster
KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
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
