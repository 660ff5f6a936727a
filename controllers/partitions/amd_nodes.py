"""What is known of nodes with AMD's GPUs, and who may divide these: from labels, the device plugin and amd-smi."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kopt.cluster.holds.node_layout import IN_PROGRESS, LayoutPhase
from kopt.cluster.objects.dcm_profiles import PROFILE_LABEL
from kopt.cluster.workloads.requests.devices import PublishedSlice
from kopt.controllers.partitions.dcm import DeviceConfigManager
from kopt.controllers.partitions.executors import (
    Executor,
    Refused,
    SignedPlans,
    dynamic_driver,
    require_one_authority,
    require_our_label,
)
from kopt.controllers.partitions.views import AMD_GPU, ObservedNode, ObservedPlan, ObservedProfiles, ReportedModes
from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.amd_modes import WHOLE_MODE, AmdMode, ModeError, amd_mode, mode_names, modes_of

PRODUCT_LABELS = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
DRIVER_LABEL = "amd.com/gpu.driver-version"
MODE_LABELS = ("amd.com/gpu.compute-memory-partition", "amd.com/compute-memory-partition")
"""As the node labeller writes it, and as its documentation has it."""


@dataclass(frozen=True)
class AmdNode:
    """``partitions``: allocatable, by mode. ``names_modes``: the device plugin names them by mode (strategy ``mixed``);
    else all are amd.com/gpu."""

    model: GpuModel
    gpus: int
    driver: str
    partitions: Mapping[str, int]
    names_modes: bool

    @property
    def mode(self) -> str:
        """The one that all its GPUs have; empty where they differ."""
        return next(iter(self.partitions)) if len(self.partitions) == 1 else ""


def is_for_modes(shares: Mapping[str, int]) -> bool:
    """Whether a MIGStrategy is for AMD's GPUs."""
    return bool(shares) and shares.keys() <= mode_names()


def read_amd_node(node: ObservedNode, reported: ReportedModes | None) -> AmdNode:
    """Raises Refused where something has to be known that nothing says."""
    product = next((node.labels[name] for name in PRODUCT_LABELS if node.labels.get(name)), "")
    try:
        model = find_gpu(product)
        modes_of(model)
    except (UnknownGpuError, ModeError) as error:
        raise Refused("UnknownGpus", f"{node.name} needs the label {PRODUCT_LABELS[0]}: {error}") from None
    named = {name: count for name, count in node.instances.items() if name not in (AMD_GPU, "gpu") and count}
    anonymous, mode = node.instances.get(AMD_GPU, 0), _labelled_mode(node)
    if anonymous and mode is None and reported is not None and len(reported.partitions) == 1:
        mode = amd_mode(next(iter(reported.partitions)))
    if anonymous and mode is None:
        raise Refused(
            "UnknownModes",
            f"{node.name} offers {anonymous} {AMD_GPU} and nothing says in which mode: start the node labeller with "
            "-compute-memory-partition, or the device plugin with -resource_naming_strategy=mixed",
        )
    partitions = dict(named) | ({mode.name: anonymous} if mode is not None and anonymous else {})
    return AmdNode(
        model, _gpus(node, partitions, reported), node.labels.get(DRIVER_LABEL, ""), partitions, not anonymous
    )


def _labelled_mode(node: ObservedNode) -> AmdMode | None:
    for label in MODE_LABELS:
        try:
            return amd_mode(node.labels.get(label, ""))
        except ModeError:
            continue
    return None


def _gpus(node: ObservedNode, partitions: Mapping[str, int], reported: ReportedModes | None) -> int:
    """Whole ones. While a node is divided its device plugin is away, and the marks say how many there are."""
    if node.layout is not None and node.layout.phase in (*IN_PROGRESS, LayoutPhase.STUCK):
        return node.layout.gpus
    if reported is not None and reported.gpus:
        return reported.gpus
    # A plugin that offers 63 of 64 partitions has eight GPUs.
    return sum(-(-count // amd_mode(name).partitions) for name, count in partitions.items())


def amd_executor(
    node: ObservedNode,
    strategies: Collection[str],
    plans: Sequence[ObservedPlan],
    is_dynamic: bool,
    profiles: ObservedProfiles,
    reported: ReportedModes | None,
    manager: DeviceConfigManager,
) -> Executor:
    """As ``executors.executor_of`` for nodes with AMD's GPUs. Raises Refused."""
    require_one_authority(node, strategies, plans)
    if is_dynamic:
        return dynamic_driver(node, PROFILE_LABEL)
    if profiles.by_name:
        require_our_label(node, PROFILE_LABEL)
        return manager
    if reported is not None and reported.gpus:
        return SignedPlans()
    raise Refused(
        "NoExecutor",
        f"{node.name} has neither AMD's device config manager ({profiles.error or 'no profile can be read'}), a driver "
        "that divides on demand, nor our node executor",
    )


def dividing_drivers(slices: Iterable[PublishedSlice]) -> set[str]:
    """Nodes whose driver divides GPUs as claims need it: it publishes one GPU in several modes at once."""
    modes: dict[tuple[str, str, str], set[str]] = {}
    for part in slices:
        for device in part.devices:
            if device.mode and device.parent:
                modes.setdefault((part.node, part.driver, device.parent), set()).add(device.mode)
    return {node for (node, _, _), names in modes.items() if len(names) > 1}


def used_partitions(node: AmdNode, requests: Iterable[Mapping[str, int]]) -> Counter[str]:
    """What pods hold of a node, by mode."""
    result: Counter[str] = Counter()
    for request in requests:
        for name, count in request.items():
            result[(node.mode or WHOLE_MODE.name) if name == AMD_GPU else name] += count
    return result
