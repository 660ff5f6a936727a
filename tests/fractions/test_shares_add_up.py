"""Guarantees on a GPU never add up to more than it has, whichever executor counts them and however it rounds."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from kopt.core.units import WHOLE_GPU, MilliGpu, parse_milli_gpu
from kopt.core.workload.gpu_share import ShareExecutor, ShareRequest
from kopt.core.workload.share_offer import NodeOffers, ShareOffer
from kopt.formats.gpu_shares import KAI_DEVICES, VOLCANO_NUMBER, WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import ShareForm, share_form
from kopt.policies.fractions.choose import choose_share, problem_of

MEMORIES = (16_384, 24_576, 40_960, 81_559, 81_920, 143_771)


@dataclass
class Gpu:
    """What its executor counts: room in milli-GPU and MiB, where a form books any."""

    mib: int
    milli_free: int = WHOLE_GPU
    mib_free: int = 0

    def __post_init__(self) -> None:
        self.mib_free = self.mib

    def take(self, form: ShareForm) -> bool:
        if form.booked_milli > self.milli_free or form.booked_mib > self.mib_free:
            return False
        self.milli_free -= form.booked_milli
        self.mib_free -= form.booked_mib
        return True


class Node:
    """Three such GPUs, and the guarantees on each."""

    def __init__(self, mib: int) -> None:
        self.gpus, self.given = [Gpu(mib) for _ in range(3)], [list[ShareRequest]() for _ in range(3)]

    def take(self, request: ShareRequest, form: ShareForm) -> bool:
        """As executors do: of as many different GPUs as the form asks for, the first that have room, or of none."""
        room = [at for at, gpu in enumerate(self.gpus) if copy.copy(gpu).take(form)]
        wanted = gpus_of(form)
        if len(room) < wanted:
            return False
        for at in room[:wanted]:
            self.gpus[at].take(form)
            self.given[at].append(request)
        return True

    def check(self) -> None:
        for gpu, shares in zip(self.gpus, self.given, strict=True):
            assert sum(share.milli for share in shares) <= WHOLE_GPU
            assert sum(share.mib for share in shares) <= gpu.mib


def gpus_of(form: ShareForm) -> int:
    """Of how many different GPUs an executor gives what a form asks for."""
    if form.claim is not None:
        (request,), constraints = form.claim["requests"], form.claim.get("constraints", ())
        count = request["exactly"].get("count", 1)
        assert count == 1 or [each["requests"] for each in constraints] == [["share"]]
        return int(count)
    devices = form.annotations.get(KAI_DEVICES)
    amounts = [form.limits.get(name) for name in (VOLCANO_NUMBER, WHOLE_GPU_RESOURCE)]
    return int(devices or next((amount for amount in amounts if amount is not None), 1))


def requests() -> st.SearchStrategy[ShareRequest]:
    milli = st.integers(100, 1000).map(MilliGpu)
    mib = st.integers(1, 150_000)
    count = st.sampled_from((1, 1, 2, 3))
    return st.one_of(
        st.builds(ShareRequest, milli, count=count),
        st.builds(ShareRequest, st.just(MilliGpu(0)), mib, count=count),
        st.builds(ShareRequest, milli, mib, count=count),
    )


@st.composite
def offers(draw: st.DrawFn) -> ShareOffer:
    executor, mib = draw(st.sampled_from(ShareExecutor)), draw(st.sampled_from(MEMORIES))
    if executor in (ShareExecutor.MPS, ShareExecutor.TIME_SLICING):
        return ShareOffer(executor, mib, replicas=draw(st.integers(2, 10)))
    if executor is ShareExecutor.DRA_HAMI:
        return ShareOffer(executor, mib, 0, "", "d", "d", "memory", "cores", 100, "d/uuid")
    if executor is ShareExecutor.DRA:
        return ShareOffer(executor, mib, 0, "", "d", "d", "memory", "milliGPU", WHOLE_GPU, "d/uuid")
    return ShareOffer(executor, mib)


@given(offers(), st.lists(requests(), max_size=25))
def test_no_gpu_guarantees_more_than_it_has(offer: ShareOffer, asked: list[ShareRequest]) -> None:
    node = Node(offer.gpu_mib)
    for request in asked:
        if not problem_of(request, offer):
            node.take(request, share_form(request, offer))
    node.check()


@given(offers(), requests())
def test_as_many_gpus_are_asked_of_an_executor(offer: ShareOffer, request: ShareRequest) -> None:
    """And where it does not give different ones, shares of several are refused."""
    if problem_of(request, offer):
        assert request.count > 1 or offer.replicas or request.mib > offer.gpu_mib
        return
    assert gpus_of(share_form(request, offer)) == request.count


@given(offers(), requests())
def test_an_executor_counts_at_least_what_was_asked(offer: ShareOffer, request: ShareRequest) -> None:
    if problem_of(request, offer):
        return
    form = share_form(request, offer)
    assert form.booked_milli >= request.milli
    assert form.booked_mib >= request.mib


@given(st.lists(offers(), min_size=1, max_size=5), st.lists(requests(), max_size=25))
def test_nor_does_a_cluster_of_several_executors(offered: list[ShareOffer], asked: list[ShareRequest]) -> None:
    """A pod is bound to a node with the terms that it was written in, first fit."""
    nodes = [NodeOffers(str(at), (offer,)) for at, offer in enumerate(offered)]
    servers = [Node(offer.gpu_mib) for offer in offered]
    for request in asked:
        chosen = choose_share(request, nodes).offer
        for at in _alike(chosen, offered):
            assert chosen is not None
            if servers[at].take(request, _as_counted(request, chosen, offered[at])):
                break
    for server in servers:
        server.check()


def _alike(chosen: ShareOffer | None, offered: list[ShareOffer]) -> Iterable[int]:
    if chosen is not None:
        yield from (
            at
            for at, offer in enumerate(offered)
            if (offer.executor, offer.replicas) == (chosen.executor, chosen.replicas)
        )


def _as_counted(request: ShareRequest, chosen: ShareOffer, offer: ShareOffer) -> ShareForm:
    """A claim and a fraction say what was computed for the GPU chosen for; parts are of the GPU at hand."""
    form = share_form(request, chosen)
    if chosen.is_dra:
        return form
    here = share_form(request, offer) if not problem_of(request, offer) else form
    return here if here.limits == form.limits and here.annotations == form.annotations else form


def test_a_tenth_and_a_fifth_are_three_tenths() -> None:
    shares = [ShareRequest(parse_milli_gpu(text)) for text in ("0.1", "0.2", "0.7")]
    for executor in ShareExecutor:
        if executor in (ShareExecutor.MPS, ShareExecutor.TIME_SLICING):
            continue
        units = 100 if executor is ShareExecutor.DRA_HAMI else WHOLE_GPU
        offer = ShareOffer(executor, 81_920, 0, "", "d", "d", "memory", "compute", units)
        forms = [share_form(request, offer) for request in shares]
        assert sum(form.booked_milli for form in forms) == WHOLE_GPU, executor
        gpu = Gpu(offer.gpu_mib)
        assert all(gpu.take(form) for form in forms), executor
        assert not gpu.take(share_form(ShareRequest(MilliGpu(100)), offer))
