"""Which executor gives a share: of the nodes that a pod may use, by what each can express and enforces.

What was asked and is not enforced is refused, with what could be had instead; nothing is dropped silently.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.core.workload.gpu_share import (
    Enforcement,
    Isolation,
    ShareExecutor,
    ShareField,
    ShareRequest,
)
from kopt.core.workload.share_enforcement import (
    ENFORCED,
    ISOLATIONS,
    SINGLE_FIGURE,
    WHY_NOT_SEVERAL,
    limits_enforced,
)
from kopt.core.workload.share_offer import NodeOffers, ShareOffer

_PARTS = {
    Isolation.MIG: "a MIG instance is a device of its own: ask for nvidia.com/mig-PROFILE, or claim one",
    Isolation.PARTITION: "a partition is a device of its own: ask for it by its resource, or claim one",
}


@dataclass(frozen=True)
class ShareChoice:
    """``offer``: what gives the share, on ``nodes`` nodes; None where nothing does, and ``refusals`` say why.
    Where one is chosen these are of executors on other nodes."""

    offer: ShareOffer | None
    nodes: int = 0
    refusals: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "; ".join(self.refusals)


def problem_of(request: ShareRequest, offer: ShareOffer) -> str:
    """Why an offer does not give what is asked; empty where it does."""
    return (
        _not_kept(request, offer)
        or _not_isolated(request, offer)
        or _not_several(request, offer)
        or _too_large(request, offer)
    )


def choose_share(
    request: ShareRequest, nodes: Iterable[NodeOffers], excluded: Callable[[ShareOffer], str] = lambda _: ""
) -> ShareChoice:
    """The executor that enforces most, among equals that of most nodes. ``nodes``: those that the pods may use;
    ``excluded``: why an offer is none for these pods, empty where it is one."""
    if request.isolation in _PARTS:
        return ShareChoice(None, refusals=(_PARTS[request.isolation],))
    usable, refused, contested = Counter[ShareOffer](), dict[str, None](), 0
    for node in nodes:
        if node.offer is None:
            contested += len(node.offers) > 1
            continue
        problem = problem_of(request, node.offer) or excluded(node.offer)
        if problem:
            refused[f"{node.offer.executor}: {problem}"] = None
        else:
            usable[node.offer] += 1
    if not usable:
        return ShareChoice(None, refusals=_refusals(request, refused, contested))
    best = min(usable, key=lambda offer: _rank(offer, usable, request.count))
    same = [offer for offer in usable if _terms(offer, request.count) == _terms(best, request.count)]
    # Of GPUs of several sizes the smallest: a part of it is a part of all.
    smallest = min(same, key=lambda offer: offer.gpu_mib)
    return ShareChoice(smallest, sum(usable[offer] for offer in same), tuple(refused))


def _rank(offer: ShareOffer, usable: Counter[ShareOffer], count: int) -> tuple[int | str, ...]:
    nodes = sum(number for other, number in usable.items() if _terms(other, count) == _terms(offer, count))
    order = list(ShareExecutor).index(offer.executor)
    return -limits_enforced(offer.executor), -nodes, order, offer.driver, offer.resource, offer.replicas, offer.gpu_mib


def _terms(offer: ShareOffer, count: int) -> ShareOffer:
    """Without what no form of this request says."""
    return replace(offer, gpu_mib=0, gpus=0, distinct=offer.distinct if count > 1 else "")


def _not_kept(request: ShareRequest, offer: ShareOffer) -> str:
    """Of what is asked, what the executor does not enforce or cannot say."""
    row = ENFORCED[offer.executor]
    lacking = [field for field in request.fields if row[field] is not Enforcement.ENFORCED]
    if lacking:
        written = [field for field in lacking if row[field] is Enforcement.NOT_ENFORCED]
        how = "is written but not enforced" if written else "cannot be expressed"
        return f"{(written or lacking)[0]} {how}"
    if offer.is_dra:
        capacities = {ShareField.FRACTION: offer.compute_capacity, ShareField.MEMORY: offer.memory_capacity}
        for field, name in capacities.items():
            if field in request.fields and not name:
                return f"{field} cannot be expressed: its devices have no such capacity that can be shared"
    if offer.executor in SINGLE_FIGURE:
        for limit, amount in ((request.limit_milli, request.milli), (request.limit_mib, request.mib)):
            if limit > amount:
                return "guarantee and limit are one figure, so there is no room to grow between them"
    return ""


def _not_isolated(request: ShareRequest, offer: ShareOffer) -> str:
    if request.isolation is None or request.isolation in ISOLATIONS[offer.executor]:
        return ""
    return f"isolation {request.isolation} is not what it does, but {', '.join(sorted(ISOLATIONS[offer.executor]))}"


def _not_several(request: ShareRequest, offer: ShareOffer) -> str:
    if request.count == 1:
        return ""
    if why := WHY_NOT_SEVERAL.get(offer.executor):
        return f"it gives no shares of several GPUs: {why}"
    if offer.is_dra and not offer.distinct:
        return "it gives no shares of several GPUs: its devices have no attribute (uuid, index) that tells them apart"
    if offer.gpus and request.count > offer.gpus:
        return f"a node has {counted(offer.gpus, 'GPU')}, fewer than {request.count}"
    return ""


def _too_large(request: ShareRequest, offer: ShareOffer) -> str:
    """Against the GPU, and against one replica where it is cut into some."""
    milli, mib = max(request.milli, request.limit_milli), max(request.mib, request.limit_mib)
    if offer.replicas:
        if milli > offer.replica_milli:
            return f"a replica is {format_gpus(offer.replica_milli)} of a GPU, less than {format_gpus(milli)}"
        if mib and not offer.gpu_mib:
            return "its nodes do not say how much memory their GPUs have (label nvidia.com/gpu.memory)"
        if mib > offer.replica_mib:
            return f"a replica has {offer.replica_mib} MiB, less than {mib}"
        return ""
    if offer.gpu_mib and mib > offer.gpu_mib:
        return f"a GPU has {offer.gpu_mib} MiB, less than {mib}"
    both_as_fraction = offer.executor is ShareExecutor.KAI and request.milli and request.mib
    if both_as_fraction and not offer.gpu_mib:
        return "it takes a fraction or an amount of memory, and its nodes do not say how much memory their GPUs have"
    return ""


def _refusals(request: ShareRequest, refused: dict[str, None], contested: int) -> tuple[str, ...]:
    result = list(refused)
    if contested:
        result.append(f"{counted(contested, 'node')} may not be used, as several executors hand out the same GPUs")
    if not result:
        return ("none of the nodes that it may use hands out shares of GPUs",)
    if instead := _instead(request):
        result.append(instead)
    return tuple(result)


def _instead(request: ShareRequest) -> str:
    """What of the table would enforce all of it, whether it is installed or not."""
    able = [executor for executor in ShareExecutor if not _lacks(request, executor)]
    return f"what could: {', '.join(able)}" if able else "no executor enforces all of it"


def _lacks(request: ShareRequest, executor: ShareExecutor) -> bool:
    whole = ShareOffer(
        executor,
        gpu_mib=1 << 30,
        memory_capacity="memory",
        compute_capacity="compute",
        compute_units=WHOLE_GPU,
        distinct="uuid",
    )
    return bool(_not_kept(request, whole) or _not_isolated(request, whole) or _not_several(request, whole))
