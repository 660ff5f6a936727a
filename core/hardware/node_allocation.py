"""Which devices of a node its kubelet has given to which pods."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class DeviceAllocation:
    """Devices of one pod: of a device plugin's ``resource``, or of a driver of dynamic resource allocation.

    ``devices`` are the ids that the plugin gave out (a GPU's UUID, that of a MIG instance, a PCI address), or, where
    ``claim`` names a ResourceClaim, ``POOL/DEVICE`` of the driver. ``gpus`` are the GPUs that they are or are parts of,
    in the order of the node's indexes and beginning with 0; None where one of them is not known.
    """

    namespace: str
    pod: str
    resource: str
    devices: tuple[str, ...]
    claim: str = ""
    gpus: tuple[int, ...] | None = None

    @property
    def whole(self) -> bool:
        """Whether each device is a GPU by itself: no share of one, and no instance."""
        return self.gpus is not None and len(self.gpus) == len(self.devices) and not any(map(is_part, self.devices))


def is_part(device: str) -> bool:
    """Is it a share (NVIDIA's plugin numbers replicas, ``GPU-…::3``) or a MIG instance?"""
    return "::" in device or device.startswith("MIG-")


def gpus_of(devices: tuple[str, ...], gpus_by_name: Mapping[str, int]) -> tuple[int, ...] | None:
    """The GPUs of devices by ``gpus_by_name``; None where one is not. Shares of one GPU count once."""
    names = [device.partition("::")[0].rpartition("/")[2] for device in devices]
    if any(name not in gpus_by_name for name in names):
        return None
    return tuple(sorted({gpus_by_name[name] for name in names}))
