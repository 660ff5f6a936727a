"""What a pod asks for: the kind of GPU that it selects, whole GPUs, and shares by annotation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_share import COUNT
from kopt.core.workload.sizing import RequestedGpus
from kopt.formats.gpu_shares import KAI_DEVICES, KAI_FRACTION, KAI_MEMORY, container_memory_mib, stated_executor

_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
TEMPLATES = ("template", "jobTemplate", "podTemplate")
_MAX_DEPTH = 12


def gpu_selected(manifest: Mapping[str, Any]) -> str | None:
    """The GPU model that a manifest's node selector names; None where it names none that is known."""
    product = _product(pod_spec(manifest))
    try:
        return find_gpu(product[:120]).name if product else None
    except UnknownGpuError:
        return None


def pod_spec(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod's specification in a pod, a template, or what holds one; empty where there is none."""
    *_, pod = _levels(manifest)
    spec = table(pod.get("spec"))
    return spec if "containers" in spec else {}


def _levels(manifest: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A manifest, the template in it, and so on down to the pod."""
    for _ in range(_MAX_DEPTH):
        yield manifest
        spec = table(manifest.get("spec"))
        inner = next((name for name in TEMPLATES if isinstance(spec.get(name), Mapping)), "")
        if "containers" in spec or not inner:
            return
        manifest = spec[inner]


def gpu_container(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that asks for the most GPUs; empty where there is none."""
    listed = spec.get("containers")
    result = [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, Sequence) else []
    return max(result, key=lambda item: _gpus(item) or container_memory_mib(item) > 0, default={})


def _gpus(container: Mapping[str, Any]) -> int | None:
    resources = table(container.get("resources"))
    for part in ("limits", "requests"):
        amounts = table(resources.get(part))
        for name in _GPU_RESOURCES:
            text = str(amounts.get(name, ""))
            if text.isascii() and text.isdigit():
                return int(text[:6])
    return None


def _product(spec: Mapping[str, Any]) -> str:
    selector = table(spec.get("nodeSelector"))
    return next((str(selector[product_label]) for product_label in _PRODUCT_LABELS if selector.get(product_label)), "")


def requested_gpus(manifest: Mapping[str, Any]) -> RequestedGpus:
    """What the GPU container of a pod, a template, or what holds one asks for, and their annotations."""
    annotations, spec = _pod(manifest)
    container = gpu_container(spec)
    if annotations.get(KAI_DEVICES) is not None or annotations.get(COUNT, "1") != "1":
        return RequestedGpus(_gpus(container))
    memory = _first(annotations, "kaiwo.ai/gpu-memory", KAI_MEMORY)
    fraction = _first(annotations, "kaiwo.ai/gpu-fraction", KAI_FRACTION)
    mib = int(memory[:9]) if memory.isascii() and memory.isdigit() else container_memory_mib(container) or None
    return RequestedGpus(_gpus(container), mib, _share(fraction))


def requested_executor(manifest: Mapping[str, Any]) -> Executor:
    """The executor in whose terms a pod, a template, or what holds one asks for a share; UNKNOWN for none."""
    return stated_executor(*_pod(manifest))


def _pod(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Annotations of the pod and of what holds it, and the pod's specification."""
    annotations: dict[str, Any] = {}
    spec: Mapping[str, Any] = {}
    for level in _levels(manifest):
        annotations |= table(table(level.get("metadata")).get("annotations"))
        spec = table(level.get("spec"))
    return annotations, spec


def _first(annotations: Mapping[str, Any], *names: str) -> str:
    return next((str(annotations[name]) for name in names if annotations.get(name)), "")


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def table(value: Any) -> Mapping[str, Any]:
    """A mapping as it is; empty for anything else."""
    return value if isinstance(value, Mapping) else {}
