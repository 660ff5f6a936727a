"""A request for a share in the terms of the executor that gives it: what the webhook writes, and what is booked.

Names and rules as in ``formats.gpu_shares``, and further:

* HAMi and Volcano: shares in whole percent, ``nvidia.com/gpucores``, ``nvidia.com/gpumem-percentage`` and
  ``volcano.sh/vgpu-cores``, ``volcano.sh/vgpu-memory-percentage`` (``docs/config.md`` of volcano-vgpu-device-plugin).
* Device plugin of NVIDIA with replicas: one of them, under the resource's own name or that with ``.shared``.
* MPS: ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`` and ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`` limit a client further than its
  daemon does ("Multi-Process Service", NVIDIA).
* Dynamic resource allocation: a claim with ``capacity.requests`` (KEP-5075); HAMi's driver counts ``cores`` in percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.units import WHOLE_GPU, format_gpus
from kopt.core.workload.executor import Executor
from kopt.core.workload.gpu_share import ShareExecutor, ShareRequest
from kopt.core.workload.share_offer import ShareOffer
from kopt.formats.gpu_shares import (
    HAMI_MEMORY,
    KAI_DEVICES,
    KAI_FRACTION,
    KAI_MEMORY,
    SCHEDULERS,
    VOLCANO_MEMORY,
    VOLCANO_NUMBER,
    WHOLE_GPU_RESOURCE,
)

HAMI_CORES, HAMI_PERCENT = "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"
VOLCANO_CORES, VOLCANO_PERCENT = "volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory-percentage"
REPLICAS_LABEL, STRATEGY_LABEL = "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy"
"""Of nodes, by NVIDIA's feature discovery (``internal/lm/resource.go``, v0.17)."""
MPS_THREADS, MPS_MEMORY = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


@dataclass(frozen=True)
class ShareForm:
    """What a pod says to be given its share. None removes what would contradict. ``booked_milli`` and ``booked_mib``
    are what the executor counts of each GPU, at least what was asked; 0 where it does not count that."""

    limits: Mapping[str, str | None]
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    scheduler: str = ""
    claim: Mapping[str, Any] | None = None
    """``spec.devices`` of a ResourceClaim."""
    booked_milli: int = 0
    booked_mib: int = 0
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes on which this form means the share."""


def share_form(request: ShareRequest, offer: ShareOffer) -> ShareForm:
    """The form of a request that the offer meets (``policies.fractions.choose``). Raises ValueError for a request
    without an amount."""
    if not request.milli and not request.mib:
        raise ValueError("a share without an amount is none")
    match offer.executor:
        case ShareExecutor.DRA | ShareExecutor.DRA_HAMI:
            return _claim(request, offer)
        case ShareExecutor.KAI:
            return _kai(request, offer.gpu_mib)
        case ShareExecutor.HAMI:
            names = (WHOLE_GPU_RESOURCE, HAMI_MEMORY, HAMI_PERCENT, HAMI_CORES)
            return _percent(request, names, "", offer.gpu_mib)
        case ShareExecutor.VOLCANO:
            names = (VOLCANO_NUMBER, VOLCANO_MEMORY, VOLCANO_PERCENT, VOLCANO_CORES)
            return _percent(request, names, SCHEDULERS[Executor.VOLCANO], offer.gpu_mib)
        case ShareExecutor.MPS | ShareExecutor.TIME_SLICING:
            return _replica(request, offer)


def _kai(request: ShareRequest, gpu_mib: int) -> ShareForm:
    """A fraction or memory, never both (``gpu_request_validator.go``), and a whole GPU by its resource. KAI takes
    memory as hundredths of the node's GPU, rounded up."""
    scheduler = SCHEDULERS[Executor.KAI]
    of_memory = -(-request.mib * 100 // gpu_mib) * 10 if gpu_mib else 0
    booked = max(request.milli, of_memory)
    if request.milli and booked >= WHOLE_GPU:
        none = {KAI_FRACTION: None, KAI_MEMORY: None, KAI_DEVICES: None}
        return ShareForm({WHOLE_GPU_RESOURCE: str(request.count)}, none, {}, scheduler, None, WHOLE_GPU, gpu_mib)
    removed = {WHOLE_GPU_RESOURCE: None}
    devices = {KAI_DEVICES: str(request.count) if request.count > 1 else None}
    if request.milli:
        share = {KAI_FRACTION: format_gpus(booked), KAI_MEMORY: None, **devices}
        return ShareForm(removed, share, {}, scheduler, None, booked, booked * gpu_mib // WHOLE_GPU)
    memory = {KAI_MEMORY: str(request.mib), KAI_FRACTION: None, **devices}
    return ShareForm(removed, memory, {}, scheduler, None, booked, max(request.mib, booked * gpu_mib // WHOLE_GPU))


def _percent(request: ShareRequest, names: tuple[str, str, str, str], scheduler: str, gpu_mib: int) -> ShareForm:
    """``names``: of the number of GPUs, memory in MiB, memory in percent, and compute in percent."""
    number, memory, percentage, cores = names
    removed: dict[str, str | None] = {} if number == WHOLE_GPU_RESOURCE else {WHOLE_GPU_RESOURCE: None}
    percent = -(-request.milli * 100 // WHOLE_GPU)
    share = {memory: str(request.mib)} if request.mib else {percentage: str(percent)}
    share |= {cores: str(percent)} if percent else {}
    mib = request.mib or percent * gpu_mib // 100
    limits = {**removed, number: str(request.count), **share}
    return ShareForm(limits, {}, {}, scheduler, None, percent * WHOLE_GPU // 100, mib)


def _replica(request: ShareRequest, offer: ShareOffer) -> ShareForm:
    removed: dict[str, str | None] = {WHOLE_GPU_RESOURCE: None} if offer.resource != WHOLE_GPU_RESOURCE else {}
    env: dict[str, str] = {}
    if offer.executor is ShareExecutor.MPS and request.limit_milli:
        env[MPS_THREADS] = str(request.limit_milli * 100 // WHOLE_GPU)
    if offer.executor is ShareExecutor.MPS and request.limit_mib:
        env[MPS_MEMORY] = f"0={request.limit_mib}M"
    # Elsewhere a replica is another part of a GPU.
    selector = {REPLICAS_LABEL: str(offer.replicas), STRATEGY_LABEL: str(offer.executor)}
    limits = {**removed, offer.resource: "1"}
    return ShareForm(limits, {}, env, "", None, offer.replica_milli, offer.replica_mib, selector)


def _claim(request: ShareRequest, offer: ShareOffer) -> ShareForm:
    """Both capacities are requested, as kube-scheduler books the whole of what a claim does not mention."""
    mib, milli = request.mib, int(request.milli)
    if offer.gpu_mib:
        mib = mib or request.milli * offer.gpu_mib // WHOLE_GPU
        milli = milli or min(WHOLE_GPU, -(-request.mib * WHOLE_GPU // offer.gpu_mib))
    units = -(-milli * offer.compute_units // WHOLE_GPU)
    amounts: dict[str, str] = {}
    if offer.memory_capacity and mib:
        amounts[offer.memory_capacity] = f"{mib}Mi"
    if offer.compute_capacity and units:
        amounts[offer.compute_capacity] = str(units)
    shared = f'device.driver == "{offer.driver}" && device.allowMultipleAllocations'
    exactly: dict[str, Any] = {
        "deviceClassName": offer.device_class,
        "selectors": [{"cel": {"expression": shared}}],
        "capacity": {"requests": amounts},
    }
    booked = units * WHOLE_GPU // offer.compute_units if offer.compute_capacity and units else 0
    claim: dict[str, Any] = {"requests": [{"name": "share", "exactly": exactly}]}
    if request.count > 1:
        # Without it kube-scheduler may give two shares of one device.
        exactly["count"] = request.count
        claim["constraints"] = [{"requests": ["share"], "distinctAttribute": offer.distinct}]
    return ShareForm({WHOLE_GPU_RESOURCE: None}, {}, {}, "", claim, booked, mib if offer.memory_capacity else 0)
