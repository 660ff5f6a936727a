"""The hardware of a cluster in one list: from ResourceSlices, device plugins and labels of discovery."""

import asyncio
from dataclasses import dataclass

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import NODES
from kopt.cluster.workloads.hardware import inventory_of
from kopt.cluster.workloads.requests.external import RESOURCE_SLICES
from kopt.controllers.overview.reading import Reader
from kopt.core.hardware.inventory import Hardware


@dataclass(frozen=True)
class HardwareList:
    """By node; ``unread`` are kinds that may not be read, so that some may be missing."""

    hardware: tuple[Hardware, ...]
    unread: tuple[str, ...] = ()


async def read_hardware(kube: Kube) -> HardwareList:
    """With the caller's rights. Raises ApiError."""
    reader = Reader(kube)
    nodes, slices = await asyncio.gather(reader.listed(NODES), reader.listed(RESOURCE_SLICES))
    listed = [item for node in inventory_of(nodes, slices) for item in node.hardware]
    return HardwareList(tuple(listed), tuple(reader.unread))
