"""What a queue of Kueue charges a pod for its shares, by the resources that its ClusterQueue has quota for.

Kueue (0.15) counts what containers request, in whole units but for CPU: a quarter of ``nvidia.com/gpu`` is one. Of
claims it counts none, or with its gate DynamicResourceAllocation devices, whatever capacity of them is asked for, and
then refuses selectors and constraints (``pkg/dra/claims.go``; kueue#11726). So claims are charged in thousandths of a
GPU, as a resource of our own that Kueue sees in the overhead of a Workload's pods, and kube-scheduler does not.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.core.workload.gpu_share import CHARGE_RESOURCE, ShareExecutor, ShareRequest
from kopt.core.workload.share_offer import ShareOffer
from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import ShareForm


@dataclass(frozen=True)
class Charge:
    """``milli``: thousandths of a GPU that a pod's claim is charged; 0 where Kueue counts what the pod requests.
    ``problem``: why the queue cannot charge it; ``warning``: where it charges otherwise than what is given."""

    milli: int = 0
    problem: str = ""
    warning: str = ""


def charge_of(
    request: ShareRequest, form: ShareForm, offer: ShareOffer, covered: Collection[str] | None, unknown: str = ""
) -> Charge:
    """``covered``: the resources that the ClusterQueue has quota for; None where it is not known. ``unknown``: why."""
    if offer.executor is ShareExecutor.KAI:
        return Charge(problem="the workload waits in a queue of Kueue, which does not read KAI's annotations")
    if form.claim is not None:
        return _of_claim(request, form, offer, covered, unknown)
    requested = [name for name, amount in form.limits.items() if amount is not None]
    if covered is None:
        return Charge()
    warnings = []
    if without := [name for name in requested if name not in covered]:
        names = ", ".join(without)
        warnings.append(f"its ClusterQueue has no quota for {names}: it waits, unless Kueue is set to ignore that")
    part = _milli(form, offer)
    if WHOLE_GPU_RESOURCE in requested and part < WHOLE_GPU:
        gpus = counted(request.count, "whole GPU")
        warnings.append(f"Kueue charges {gpus} for {format_gpus(part)} of each: it counts {WHOLE_GPU_RESOURCE}")
    return Charge(warning="; and ".join(warnings))


def charge_of_claim(request: ShareRequest, form: ShareForm, offer: ShareOffer) -> int:
    """Thousandths of a GPU that a pod with this claim is charged, in whichever queue it comes to wait."""
    return request.count * _milli(form, offer)


def _of_claim(
    request: ShareRequest, form: ShareForm, offer: ShareOffer, covered: Collection[str] | None, unknown: str
) -> Charge:
    if covered is None:
        why = unknown or "what that has quota for is not known"
        return Charge(problem=f"the workload waits in a queue of Kueue, and {why}")
    if CHARGE_RESOURCE not in covered:
        what = f"without quota for {CHARGE_RESOURCE}, as which claims are charged"
        return Charge(problem=f"the workload waits in a queue of Kueue {what}")
    return Charge(charge_of_claim(request, form, offer))


def _milli(form: ShareForm, offer: ShareOffer) -> int:
    """Of each GPU what is taken, of its compute or its memory, whichever is more: nobody else can have that."""
    of_memory = -(-form.booked_mib * WHOLE_GPU // offer.gpu_mib) if offer.gpu_mib else 0
    return min(WHOLE_GPU, max(form.booked_milli, of_memory)) or WHOLE_GPU
