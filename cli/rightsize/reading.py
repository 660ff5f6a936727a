"""The GPU workloads that run, and what could be changed of them."""

from typing import TYPE_CHECKING

from kopt.cluster.workloads.resizing.use import Use

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.controllers.overview.running_workloads import PodKind
    from kopt.controllers.rightsizing.candidates import Candidate, RunningWorkload


async def read_candidates(
    kube: "Kube", use: Use, now_s: float, namespace: str = "", workload: str = ""
) -> "list[Candidate]":
    """Of every workload with GPUs that runs, or of the one that is named as KIND/NAME."""
    from kopt.cli.cluster.idle import read_kaiwos, uid_of
    from kopt.controllers.overview.running_workloads import running
    from kopt.controllers.rightsizing.candidates import candidates_of

    kaiwos = await read_kaiwos(kube, namespace)
    pods = await running_pods(kube, namespace)
    result: list[Candidate] = []
    async for pod_kind in running(kube, namespace):
        if workload and pod_kind.label.lower() != workload.lower():
            continue
        of_it = [pods[key] for name in pod_kind.pod_names if (key := (pod_kind.workload.namespace, name)) in pods]
        kaiwo = kaiwos.get(uid_of(pod_kind))
        idles = kaiwo is not None and kaiwo.idle_since_s is not None
        if of_it:
            result += candidates_of(workload_of(pod_kind, ended_by_kaiwo=idles), of_it, use, now_s)
    return result


def workload_of(pod_kind: "PodKind", *, ended_by_kaiwo: bool = False) -> "RunningWorkload":
    from kopt.cluster.client.resources import PODS
    from kopt.cluster.objects.annotations import AnnotationError
    from kopt.cluster.objects.resize_history import widths_of
    from kopt.cluster.workloads.pod_sizing import gpu_container
    from kopt.controllers.rightsizing.candidates import RunningWorkload

    workload = pod_kind.workload
    container = gpu_container(workload, pod_kind.pods)
    try:
        # A pod is a workload, too, with a history of its own.
        widths = [] if workload.kind.resource == PODS else widths_of(workload.document)
    except AnnotationError:
        widths = []
    return RunningWorkload(
        workload.namespace,
        pod_kind.label,
        pod_kind.resource.reference(
            workload.namespace, workload.name, str(workload.document["metadata"].get("uid", ""))
        ),
        "" if container is None else str(container[1]["name"]),
        workload.opts_out,
        ended_by_kaiwo,
        tuple(widths),
    )


async def running_pods(kube: "Kube", namespace: str) -> "dict[tuple[str, str], Object]":
    """Pods whose containers have started, by namespace and name."""
    from kopt.cluster.client.resources import PODS, key_of

    return {
        key_of(pod): pod
        async for page in kube.pages(PODS, namespace, field_selector="status.phase=Running")
        for pod in page.items
        if "deletionTimestamp" not in pod["metadata"]
    }
