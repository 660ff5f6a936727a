"""Maps of made-up nodes."""

from kopt.core.scheduling.devices import GpuDevice, GpuHolder
from kopt.core.scheduling.gpu_map import GpuMap, MapNode
from kopt.core.units import GIB, Bytes

NVIDIA = "nvidia.com/gpu"


def device(node: str, index: int, *holders: GpuHolder, takes_pods: bool = True, problem: str = "") -> GpuDevice:
    free = max(0, 1000 - sum(holder.milli_gpu for holder in holders))
    return GpuDevice(
        node, str(index), NVIDIA, "NVIDIA-H100-80GB-HBM3", Bytes(80 * GIB), free, holders, takes_pods, problem
    )


def gpu_map(
    nodes: int, *, name: str = "", gpus: int = 8, measured: bool = True, problems: tuple[str, ...] = ()
) -> GpuMap:
    """Nodes ``gpu-N``: of every four one is free, one is held by ``a``, one by ``b``, and one is cordoned. The first
    has ``name`` in its name and its pod's."""
    made = {}
    for number in range(nodes):
        node = f"gpu-{number}{name if not number else ''}"
        namespace = "ab"[number % 2]
        holder = GpuHolder(namespace, f"train-{number}{name if not number else ''}", 1000, assumed=not measured)
        held = number % 4 < 2
        devices = tuple(
            device(node, index, *([holder] if held else []), takes_pods=number % 4 != 3, problem=name)
            for index in range(gpus)
        )
        busy = tuple(((index * 13 + number) % 101) / 100 if measured and held else None for index in range(gpus))
        made[node] = MapNode(node, devices, busy, {(namespace, holder.pod): ("Job", f"train-{number}")}, 1)
    return GpuMap(cluster=True, version=1, nodes=made, is_measured=measured, problems=problems)
