"""What hands out shares of a GPU, by the signs of a cluster."""

from typing import Any

import pytest

from kopt.cluster.workloads.shares.executors import executor_by_signs, executor_for, kai_executor, node_executor
from kopt.cluster.workloads.workload import read_workload
from kopt.core.workload.executor import Executor

REGISTERED = {"hami.io/node-nvidia-register": '[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100}]'}
H100 = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": "8"}


def node(annotations: Any = None, labels: Any = None, **allocatable: str) -> dict[str, Any]:
    return {
        "metadata": {"annotations": annotations, "labels": labels},
        "status": {"allocatable": {name.replace("_", "/", 1).replace("_", "-"): n for name, n in allocatable.items()}},
    }


@pytest.mark.parametrize(
    ("document", "executor"),
    [
        ({}, None),
        (node(None, H100, **{"nvidia.com_gpu": "8"}), None),
        (node(REGISTERED, None, **{"nvidia.com_gpu": "80"}), Executor.HAMI),
        (node(REGISTERED | {"hami.io/node-handshake": "Requesting_2026-01-01 00:00:00"}), Executor.HAMI),
        (node(REGISTERED | {"hami.io/node-handshake": "Deleted_2026-01-01 00:00:00"}), None),
        (node({"hami.io/node-nvidia-register": ""}), None),
        (node(None, H100, **{"volcano.sh_vgpu_memory": "652472"}), Executor.VOLCANO),
        (node(None, None, **{"volcano.sh_vgpu_memory": "89424"}), Executor.VOLCANO),
        (node(None, None, **{"volcano.sh_vgpu_memory": "0"}), None),
        # Units of 11 MiB, which the kubelet needs where a node has much memory.
        (node(None, H100, **{"volcano.sh_vgpu_memory": "59315"}), None),
    ],
)
def test_a_node_shows_its_device_plugin(document: dict[str, Any], executor: Executor | None) -> None:
    assert node_executor(document) is executor


@pytest.mark.parametrize(
    ("spec", "executor"),
    [
        ({"admission": {"gpuSharing": True}}, Executor.KAI),
        ({"admission": {"gpuSharing": False}}, None),
        ({"admission": {"gpuSharing": "true"}}, None),
        ({}, None),
    ],
)
def test_kai_shares_where_its_configuration_says_so(spec: Any, executor: Executor | None) -> None:
    assert kai_executor({"spec": spec}) is executor


@pytest.mark.parametrize(
    ("signs", "executor"),
    [
        ([], Executor.NONE),
        ([Executor.HAMI, Executor.HAMI], Executor.HAMI),
        ([Executor.KAI], Executor.KAI),
        ([Executor.KAI, Executor.HAMI], Executor.UNKNOWN),
    ],
)
def test_signs_that_contradict_each_other_show_nothing(signs: list[Executor], executor: Executor) -> None:
    assert executor_by_signs(signs) is executor


SEVERAL = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}
QUEUE = {"kai.scheduler/queue": "team"}


@pytest.mark.parametrize(
    ("in_cluster", "labels", "annotations", "scheduler", "executor"),
    [
        (Executor.KAI, QUEUE, {}, "", Executor.KAI),
        (Executor.KAI, QUEUE, {}, "default-scheduler", Executor.KAI),
        (Executor.KAI, QUEUE, {}, "kai-scheduler", Executor.KAI),
        (Executor.KAI, QUEUE, {}, "volcano", Executor.NONE),
        (Executor.KAI, {}, {}, "kai-scheduler", Executor.NONE),
        (Executor.HAMI, {}, {}, "", Executor.HAMI),
        (Executor.HAMI, {"kueue.x-k8s.io/queue-name": "team"}, {}, "", Executor.NONE),
        (Executor.VOLCANO, {}, {}, "volcano", Executor.VOLCANO),
        (Executor.NONE, QUEUE, {}, "", Executor.NONE),
        (Executor.UNKNOWN, QUEUE, {}, "", Executor.UNKNOWN),
        # Pods that ask in an executor's terms show it themselves.
        (Executor.UNKNOWN, QUEUE, {"gpu-fraction": "0.5"}, "kai-scheduler", Executor.KAI),
        (Executor.NONE, QUEUE, {"gpu-fraction": "0.5"}, "default-scheduler", Executor.NONE),
        (
            Executor.KAI,
            QUEUE,
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            "kai-scheduler",
            Executor.UNKNOWN,
        ),
    ],
)
def test_a_pod_gets_shares_of_its_own_scheduler_and_queue(
    in_cluster: Executor, labels: Any, annotations: Any, scheduler: str, executor: Executor
) -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [container]} | ({"schedulerName": scheduler} if scheduler else {})
    metadata = {"name": "one", "labels": labels, "annotations": annotations}
    workload = read_workload({"kind": "Pod", "metadata": metadata, "spec": spec}, "", "Pod", "team", "one")
    assert workload is not None
    assert executor_for(in_cluster, workload.document, workload, workload.pod_sets[0]) is executor
