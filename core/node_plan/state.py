"""How the GPUs of a node are partitioned now, and a digest of it that a plan names."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kopt.core.gpu import Vendor
from kopt.core.untrusted import UnreadableError, whole, word

MOST_GPUS = 64
_MOST_INSTANCES = 16
_PURPOSE = b"kopt node state v1\n"


class Compute(StrEnum):
    """The compute instances of a MIG instance: one over all of it, none, or others, which no verb makes."""

    WHOLE = "whole"
    NONE = "none"
    PARTS = "parts"


@dataclass(frozen=True, order=True)
class MigInstance:
    """One MIG instance: its profile, such as ``1g.10gb``, and the memory slot that it starts at."""

    profile: str
    start: int
    compute: Compute = Compute.WHOLE

    @property
    def position(self) -> tuple[str, int]:
        return self.profile, self.start


@dataclass(frozen=True)
class MigGpu:
    """An NVIDIA GPU. ``pending`` is the MIG mode after its next reset; ``instances`` are sorted."""

    uuid: str
    model: str
    enabled: bool
    pending: bool
    instances: tuple[MigInstance, ...] = ()

    def with_instances(self, *instances: MigInstance) -> "MigGpu":
        return replace(self, instances=tuple(sorted(instances)))


@dataclass(frozen=True)
class PartitionedGpu:
    """An AMD GPU, named by its index: ``compute`` is SPX, DPX, QPX or CPX, ``memory`` NPS1 and so on."""

    uuid: str
    model: str
    compute: str
    memory: str


NodeGpu = MigGpu | PartitionedGpu


@dataclass(frozen=True)
class NodeState:
    """The GPUs of a node, of one vendor, in the driver's order."""

    vendor: Vendor
    gpus: tuple[NodeGpu, ...]

    def gpu(self, uuid: str) -> NodeGpu:
        """Raises KeyError."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None) or _absent(uuid)

    def with_gpu(self, changed: NodeGpu) -> "NodeState":
        return replace(self, gpus=tuple(changed if gpu.uuid == changed.uuid else gpu for gpu in self.gpus))

    @property
    def digest(self) -> str:
        """sha256 of its canonical JSON, 64 hexadecimal digits."""
        text = json.dumps(document_of(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(_PURPOSE + text.encode()).hexdigest()


def _absent(uuid: str) -> NodeGpu:
    raise KeyError(uuid)


def document_of(state: NodeState) -> dict[str, Any]:
    """As it is published, hashed and recorded."""
    return {"vendor": state.vendor.value, "gpus": [_gpu_document(gpu) for gpu in state.gpus]}


def _gpu_document(gpu: NodeGpu) -> dict[str, Any]:
    document: dict[str, Any] = {"uuid": gpu.uuid, "model": gpu.model}
    if isinstance(gpu, PartitionedGpu):
        return document | {"compute": gpu.compute, "memory": gpu.memory}
    instances = [
        {"profile": each.profile, "start": each.start, "compute": each.compute.value} for each in gpu.instances
    ]
    return document | {"mig": gpu.enabled, "migPending": gpu.pending, "instances": instances}


def state_of(document: Mapping[str, Any]) -> NodeState:
    """Raises UnreadableError."""
    try:
        vendor = Vendor(word(document, "vendor", 16))
    except ValueError as error:
        raise UnreadableError(f"vendor: {error}") from None
    gpus = _list(document, "gpus", MOST_GPUS)
    state = NodeState(vendor, tuple(_mig_gpu(gpu) if vendor is Vendor.NVIDIA else _amd_gpu(gpu) for gpu in gpus))
    if len({gpu.uuid for gpu in state.gpus}) != len(state.gpus):
        raise UnreadableError("two GPUs have the same uuid")
    return state


def _mig_gpu(document: Mapping[str, Any]) -> MigGpu:
    gpu = MigGpu(
        word(document, "uuid", 128), word(document, "model", 128), _flag(document, "mig"), _flag(document, "migPending")
    )
    return gpu.with_instances(*(_instance(item) for item in _list(document, "instances", _MOST_INSTANCES)))


def _instance(document: Mapping[str, Any]) -> MigInstance:
    compute = word(document, "compute", 16)
    if compute not in list(Compute):
        raise UnreadableError(f"compute: {compute!r} is none of {', '.join(Compute)}")
    return MigInstance(word(document, "profile", 32), whole(document, "start", high=64), Compute(compute))


def _amd_gpu(document: Mapping[str, Any]) -> PartitionedGpu:
    names = ("uuid", "model", "compute", "memory")
    return PartitionedGpu(*(word(document, name, 128) for name in names))


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name)
    if not isinstance(value, bool):
        raise UnreadableError(f"{name} is neither true nor false")
    return value


def _list(document: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    value = document.get(name)
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, dict) for item in value):
        raise UnreadableError(f"{name} is no list of at most {most} objects")
    return value
