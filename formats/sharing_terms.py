"""A mode of sharing in the terms of what sets it: a configuration of NVIDIA's device plugin, or settings of a claim.

* Device plugin 0.17 (``api/config/v1``, ``cmd/config-manager``): a ConfigMap of configurations, of which the node's
  label ``nvidia.com/device-plugin.config`` names one. Replicas are 2 or more; the daemon of MPS gives each client 100
  divided by replicas per cent of the threads, and that part of memory.
* DRA driver (``api/nvidia.com/resource/v1beta1``): opaque parameters ``GpuConfig``. All clients of a claim's daemon
  have its default part of the threads; the environment of a client lowers its own further and never raises it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.core.sharing.modes import SharingMode
from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import MPS_MEMORY, MPS_THREADS

CONFIGURATION_LABEL = "nvidia.com/device-plugin.config"
GPU_DRIVER = "gpu.nvidia.com"
_BLOCKS = {SharingMode.MPS: "mps", SharingMode.TIME_SLICING: "timeSlicing"}
_STRATEGIES = {SharingMode.MPS: "MPS", SharingMode.TIME_SLICING: "TimeSlicing"}
_MOST_REPLICAS = 4096
_OWN = "kopt-"


@dataclass(frozen=True)
class ReplicaSetting:
    """What a configuration makes of each whole GPU; one replica for exclusive."""

    mode: SharingMode
    replicas: int = 1


def configuration_name(setting: ReplicaSetting) -> str:
    """``kopt-mps-4``: a key of the ConfigMap, and a value of the label."""
    return f"{_OWN}exclusive" if setting.replicas < 2 else f"{_OWN}{setting.mode}-{setting.replicas}"


def is_own_configuration(name: str) -> bool:
    """Whether a configuration has a name as we give them."""
    return name.startswith(_OWN)


def plugin_configuration(setting: ReplicaSetting, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration, with everything but sharing as in ``base``, which is the one that the node has now. The plugin
    refuses MPS with ``migStrategy: mixed`` (``validateFlags``), which then is ``none``."""
    result = {
        "version": "v1",
        **{key: value for key, value in (base or {}).items() if key not in ("version", "sharing")},
    }
    flags = result.get("flags")
    if setting.mode is SharingMode.MPS and isinstance(flags, dict) and flags.get("migStrategy") == "mixed":
        result["flags"] = {**flags, "migStrategy": "none"}
    if setting.replicas >= 2:
        resource = {"name": WHOLE_GPU_RESOURCE, "replicas": setting.replicas}
        result["sharing"] = {_BLOCKS[setting.mode]: {"resources": [resource]}}
    return result


def configuration_text(setting: ReplicaSetting, base: object) -> str:
    """As the ConfigMap holds it; ``base`` as somebody wrote it, which counts where it is a mapping."""
    import yaml

    document = plugin_configuration(setting, base if isinstance(base, dict) else None)
    return yaml.safe_dump(document, sort_keys=False)


def read_plugin_configuration(document: object) -> ReplicaSetting | None:
    """What a configuration makes of whole GPUs, as the plugin reads it: MPS before turns; None where it cannot be
    read."""
    if not isinstance(document, dict) or document.get("version", "v1") != "v1":
        return None
    sharing = document.get("sharing") or {}
    for mode, block in _BLOCKS.items():
        shared = sharing.get(block) if isinstance(sharing, dict) else None
        resources = shared.get("resources") if isinstance(shared, dict) else None
        for resource in resources if isinstance(resources, list) else ():
            replicas = _replicas(resource)
            if replicas:
                return ReplicaSetting(mode, replicas)
    return ReplicaSetting(SharingMode.EXCLUSIVE)


def _replicas(resource: object) -> int:
    """Of whole GPUs; 0 for anything else."""
    if not isinstance(resource, dict) or resource.get("name") != WHOLE_GPU_RESOURCE:
        return 0
    replicas = resource.get("replicas")
    is_count = isinstance(replicas, int) and not isinstance(replicas, bool) and 2 <= replicas <= _MOST_REPLICAS
    return replicas if is_count and isinstance(replicas, int) else 0


def client_environment(mode: SharingMode, percent: int, mib: int) -> dict[str, str]:
    """By which a container is held to less than the daemon's part; nothing without MPS."""
    if mode is not SharingMode.MPS:
        return {}
    return {MPS_THREADS: str(percent), MPS_MEMORY: f"0={mib}M"}


def claim_config(mode: SharingMode, shares: Sequence[tuple[int, int]], request: str) -> dict[str, Any] | None:
    """An entry of a claim's ``spec.devices.config``; None for exclusive. ``shares``: per cent of threads and MiB of
    each pod; the daemon's default is the largest of each, as environments only lower it."""
    if mode is SharingMode.EXCLUSIVE:
        return None
    sharing: dict[str, Any] = {"strategy": _STRATEGIES[mode]}
    if mode is SharingMode.MPS:
        sharing["mpsConfig"] = {
            "defaultActiveThreadPercentage": max(percent for percent, _ in shares),
            "defaultPinnedDeviceMemoryLimit": f"{max(mib for _, mib in shares)}Mi",
        }
    else:
        sharing["timeSlicingConfig"] = {"interval": "Default"}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    return {"requests": [request], "opaque": {"driver": GPU_DRIVER, "parameters": parameters}}
