"""From an XID that a real Prometheus has scraped to the pod that the real scheduler puts elsewhere, and back."""

import asyncio
import time
from collections.abc import Callable

import pytest
from controlplane.kwok import Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cli.local.pages.cluster import ClusterWatch
from kopt.cluster.client.api import connect
from kopt.dashboard.pages.gpus.data import VisibleMap
from kopt.dashboard.pages.gpus.health import NodeHealthLine
from kopt.dashboard.pages.gpus.view import GpuChoice, gpus_page
from tests.cost.conftest import kopt
from tests.extender.conftest import RunningExtender, gpu_pod, start_extender
from tests.extender.test_scheduling_by_the_policy import bound, indices

from .conftest import Exporter, Start, condition, status, taints

pytestmark = pytest.mark.cluster
TAINT = "kaiwo.ai/gpu-unhealthy"
STARTERS = (start_extender,)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


async def health_on_page(plane: ControlPlane, node: str) -> NodeHealthLine:
    """What the page of GPUs shows, by watches of the cluster."""
    async with connect(plane.kubeconfig) as kube, asyncio.timeout(60):
        watch = ClusterWatch(kube)
        running = asyncio.create_task(watch.run())
        try:
            while True:
                visible = VisibleMap(watch.gpus())
                if node in visible.map.nodes:
                    page = gpus_page(visible, (), GpuChoice(node=node))
                    if page.health is not None and page.health.grade:
                        return page.health
                await asyncio.sleep(0.1)
        finally:
            running.cancel()
            await asyncio.wait([running])


def test_a_gpu_that_fell_off_the_bus_keeps_pods_away_until_its_node_is_repaired(
    plane: ControlPlane,
    nodes: Nodes,
    exporter: Exporter,
    prometheus: str,
    health: Start,
    start_extender: Callable[..., RunningExtender],
) -> None:
    api, space = plane.api, plane.api.space("health-pods")
    ill, worn, *others = nodes
    for node in nodes:
        for gpu in range(8):
            # Programs fail on every node, at any time.
            exporter.set("DCGM_FI_DEV_XID_ERRORS", node, gpu, 43.0 if gpu == 5 else 0.0)
            exporter.set("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", node, gpu, 7.0)
    foreign = {"key": "team.example.com/other", "value": "yes", "effect": "PreferNoSchedule"}
    api.patch("v1", "Node", ill, {"spec": {"taints": [foreign]}})
    replica = health("--mode=enforce", f"--prometheus={prometheus}", "--most-share=0.25")
    replica.server.wait_until(lambda: replica.metric("kopt_health_measured") == 1.0, what="it is measured")
    wait_for(lambda: all(status(api, node) for node in nodes), what="every node has an object")
    wait_for(lambda: any(item["code"] == "XID_43" for item in status(api, ill)["evidence"]), what="XID 43 is kept")
    assert {status(api, node)["verdict"] for node in nodes} == {"Healthy"}

    exporter.set("DCGM_FI_DEV_XID_ERRORS", ill, 3, 79.0)
    at_s = time.monotonic()
    wait_for(lambda: TAINT in taints(api, ill), what="the taint")
    assert time.monotonic() - at_s < 10
    wait_for(lambda: condition(api, ill).get("status") == "False", what="the condition")
    assert condition(api, ill)["message"] == "GPU 3: XID 79, the GPU has fallen off the bus"
    said = status(api, ill)
    assert (said["verdict"], said["score"]) == ("Condemned", 0)
    assert [(gpu["gpu"], gpu["verdict"]) for gpu in said["gpus"]] == [("3", "Condemned")]

    shown = kopt("health", "explain", ill, "--kubeconfig", str(plane.kubeconfig))
    rows = [(row["gpu"], row["code"], row["load"]) for row in shown["evidence"]]
    assert rows[0] == ("3", "XID 79", 1.2)
    assert ("5", "XID 43", 0) in rows
    listed = kopt("health", "list", "--kubeconfig", str(plane.kubeconfig))
    assert [(row["node"], row["gpus"]) for row in listed["nodes"]] == [(ill, ["3"])]

    on_page = asyncio.run(health_on_page(plane, ill))
    (of_gpu,) = (line for line in on_page.lines if line.gpu == "3")
    assert (on_page.grade, of_gpu.what, of_gpu.fades) == (
        "condemned",
        "XID 79: the GPU has fallen off the bus",
        "until a repair",
    )
    said = {line.what: line.by for line in on_page.lines if line.weighs is None}
    assert said[f"taint {TAINT}=XID_79:NoSchedule"] == "kopt health"
    assert said[f"taint {foreign['key']}=yes:PreferNoSchedule"] == "team.example.com"
    assert said["condition GPUHealthy=False: GPU 3: XID 79, the GPU has fallen off the bus"] == "kopt health"

    # A second node is suspect only: nothing keeps pods away from it but the extender's scores.
    exporter.set("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", worn, 0, 9.0)
    time.sleep(2.5)
    exporter.set("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", worn, 0, 11.0)
    wait_for(lambda: status(api, worn)["verdict"] == "Suspect", what="the suspect")
    extender = start_extender(plane, space)
    extender.start_scheduler(space)
    for number in range(4):
        api.create(gpu_pod(f"p{number}", space, 4, scheduler=space, selector=nodes.selector))
        assert bound(api, f"p{number}", space)["spec"]["nodeName"] in others
    # Where nothing else is left, one GPU of the suspect node is still to be had: a healthy one.
    api.create(gpu_pod("last", space, 1, scheduler=space, selector=nodes.selector))
    pod = bound(api, "last", space)
    assert (pod["spec"]["nodeName"], 0 in (indices(pod) or [])) == (worn, False)
    assert TAINT not in taints(api, worn)

    # The cap: a quarter of four nodes is one.
    exporter.set("DCGM_FI_DEV_XID_ERRORS", others[0], 1, 79.0)
    wait_for(lambda: condition(api, others[0]).get("status") == "False", what="its condition")
    assert TAINT not in taints(api, others[0])

    exporter.set("DCGM_FI_DEV_XID_ERRORS", ill, 3, 0.0)
    time.sleep(2.5)
    assert TAINT in taints(api, ill), "an exporter that began anew is no repair"
    api.patch("v1", "Node", ill, {"metadata": {"annotations": {"kaiwo.ai/repaired-at": now()}}})
    wait_for(lambda: not condition(api, ill) and TAINT not in taints(api, ill), what="it is given back")
    assert taints(api, ill) == [foreign["key"]]
    assert "kaiwo.ai/gpu-unhealthy" not in api.get("v1", "Node", ill)["metadata"]["labels"]
    wait_for(lambda: TAINT in taints(api, others[0]), what="there is room for the next one")
    api.create(gpu_pod("after", space, 8, scheduler=space, selector=nodes.selector))
    assert bound(api, "after", space)["spec"]["nodeName"] == ill
