"""The GPUs of a cluster, one by one: what each is, who holds it, and what is wrong with it."""

from dataclasses import dataclass

from kopt.core.units import WHOLE_GPU, Bytes


@dataclass(frozen=True)
class GpuHolder:
    """A pod with ``milli_gpu`` of a GPU. ``assumed``: that it is just this one is not known, as nothing names it."""

    namespace: str
    pod: str
    milli_gpu: int
    assumed: bool = False


@dataclass(frozen=True)
class GpuDevice:
    """``name`` is its index on the node, or the name of a device of dynamic resource allocation; ``resource`` what pods
    ask for it by: a resource, or a driver. ``problem`` is for people, empty where nothing is known to be wrong."""

    node: str
    name: str
    resource: str
    model: str
    memory_bytes: Bytes
    free_milli_gpu: int
    holders: tuple[GpuHolder, ...] = ()
    takes_pods: bool = True
    """Its node is ready and not cordoned, the device has no taint, and its device plugin offers it."""
    problem: str = ""
    shortfall: str = ""
    """What closes a GPU where its device plugin offers fewer than there are: that it is this one is assumed."""

    @property
    def problems(self) -> str:
        return "; ".join(filter(None, (self.problem, self.shortfall)))

    @property
    def state(self) -> str:
        """``free``, ``held``, ``shared`` where a part is free or several hold it, and ``closed`` where nothing that it
        has left can be had."""
        if not self.takes_pods and self.free_milli_gpu:
            return "closed"
        if self.free_milli_gpu >= WHOLE_GPU:
            return "free"
        return "shared" if self.free_milli_gpu or len(self.holders) > 1 else "held"
