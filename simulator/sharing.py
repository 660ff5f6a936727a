"""Services and batch on one GPU under modes of sharing: every request of a trace, and the ladder that steps between.

A request takes ``service_s`` alone. Below the SMs that its service fills it takes longer in proportion; beside others
it is slowed by their activity times the batch's ``pull`` on bandwidth and caches, as published of DenseNet-121 in pairs
of MPS clients (forums.developer.nvidia.com/t/326201: 57.6, 30.8, 14.3 and 14.1 ms with 10, 20, 80 and 90 % of the
threads alone; 1.48, 1.51, 1.14 and 1.07 times that beside a second one with the rest). In turns each waits for all
others that have work.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.policies.fractions.ladder import LadderSettings, LadderState, step
from kopt.policies.fractions.sharing import Sharer, SharingPlan

_EVERY_S = 30.0
_WINDOW_S = 300.0
"""As ``rate(…[5m])`` of a histogram of latencies."""
_SWITCHING = 1.05
"""Of turns: what changing between processes costs."""
_FEWEST = 10
"""Requests in a window from which a quantile is measured."""


@dataclass(frozen=True)
class Service:
    """``arrivals_s``: of its requests, ascending. ``promised_s``: latency within which each is to be answered."""

    sharer: Sharer
    arrivals_s: Sequence[float]
    service_s: float
    promised_s: float


@dataclass(frozen=True)
class Batch:
    """``pull``: how much a service is slowed per share of SMs that it uses. ``works``: whether it has work then."""

    sharer: Sharer
    pull: float
    works: Callable[[float], bool] = lambda _: True


@dataclass(frozen=True)
class Outage:
    """While the daemon of MPS is away nothing runs that is shared by MPS."""

    from_s: float = math.inf
    until_s: float = math.inf

    def includes(self, now_s: float) -> bool:
        return self.from_s <= now_s < self.until_s


@dataclass
class SharedRun:
    """``batch_s``: work done, as seconds of the batch alone on a GPU. ``gpu_s``: of all GPUs that were held."""

    requests: int = 0
    late: int = 0
    batch_s: float = 0.0
    gpu_s: float = 0.0
    moves: int = 0
    rungs_s: dict[int, float] = field(default_factory=dict)
    latencies_s: list[list[float]] = field(default_factory=list)
    """Of the requests of each service."""


@dataclass(frozen=True)
class SharedGpu:
    """What shares a GPU. ``pull``: of services on each other, where no batch has one. ``restart_s``: so long batch is
    away when its part or the mode changes; services are replaced one after the other and answer meanwhile, but hold a
    further GPU where the mode changes."""

    services: Sequence[Service]
    batches: Sequence[Batch]
    outage: Outage = Outage()
    restart_s: float = 60.0
    pull: float = 1.0

    @property
    def sharers(self) -> list[Sharer]:
        """In the order of shares."""
        return [*(each.sharer for each in self.services), *(each.sharer for each in self.batches)]


def replay(
    gpu: SharedGpu, rungs: Sequence[SharingPlan], until_s: float, ladder: LadderSettings | None = None
) -> SharedRun:
    """From rung 0; without a ladder it stays there. ``rungs``: shares in the order of ``gpu.sharers``."""
    run, state = SharedRun(latencies_s=[[] for _ in gpu.services]), LadderState()
    clients = [_Client(service) for service in gpu.services]
    away_s = [0.0] * len(gpu.sharers)
    now_s = 0.0
    while now_s < until_s:
        plan = rungs[state.rung]
        _serve(gpu, plan, clients, away_s, now_s, run)
        _account(gpu, plan, sum(client.busy_share for client in clients), away_s, now_s, run)
        run.rungs_s[state.rung] = run.rungs_s.get(state.rung, 0.0) + _EVERY_S
        now_s += _EVERY_S
        if ladder is None:
            continue
        after = step(state, _pressure(clients, now_s), now_s, len(rungs) - 1, ladder)
        if gpu.outage.includes(now_s) and rungs[after.rung].mode is SharingMode.MPS:
            lower = next(at for at, rung in enumerate(rungs) if rung.mode is not SharingMode.MPS)
            after = LadderState(lower, wait_s=after.wait_s, moved_s=now_s)
        if after.rung != state.rung:
            run.moves += 1
            _restart(gpu, plan, rungs[after.rung], away_s, now_s)
            run.gpu_s += gpu.restart_s * (plan.mode is not rungs[after.rung].mode)
        state = after
    return run


class _Client:
    """Requests of a service, first come first served."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.at = 0
        self.free_s = 0.0
        self.recent: deque[tuple[float, float]] = deque()
        self.busy_share = 0.0


def _serve(
    gpu: SharedGpu, plan: SharingPlan, clients: list[_Client], away_s: list[float], now_s: float, run: SharedRun
) -> None:
    """All requests that come until the next measurement."""
    end_s = now_s + _EVERY_S
    shares = [client.busy_share for client in clients]
    for number, client in enumerate(clients):
        taken_s = client.service.service_s * _slowdown(gpu, plan, number, shares, now_s)
        busy_s, arrivals = 0.0, client.service.arrivals_s
        is_dead = plan.mode is SharingMode.MPS and gpu.outage.includes(now_s)
        earliest_s = max(away_s[number], gpu.outage.until_s if is_dead else 0.0)
        while client.at < len(arrivals) and arrivals[client.at] < end_s:
            came_s = arrivals[client.at]
            start_s = max(came_s, client.free_s, earliest_s)
            client.free_s = start_s + taken_s
            busy_s += taken_s
            late_s = client.free_s - came_s
            run.requests += 1
            run.late += late_s > client.service.promised_s
            client.recent.append((came_s, late_s))
            run.latencies_s[number].append(late_s)
            client.at += 1
        client.busy_share = min(1.0, busy_s / _EVERY_S)


def _slowdown(gpu: SharedGpu, plan: SharingPlan, number: int, busy: Sequence[float], now_s: float) -> float:
    """Of a request of a service, beside what has work now."""
    if plan.mode is SharingMode.EXCLUSIVE:
        return 1.0
    working = [batch.works(now_s) for batch in gpu.batches]
    others = sum(share for at, share in enumerate(busy) if at != number)
    if plan.mode is SharingMode.TIME_SLICING:
        return _SWITCHING * (1.0 + others + sum(working))
    width = max(1, gpu.services[number].sharer.width_percent)
    pulls = [
        batch.pull * min(share.percent, batch.sharer.width_percent) / 100
        for batch, share, works in zip(gpu.batches, plan.shares[len(gpu.services) :], working, strict=True)
        if works
    ]
    beside = others * max((batch.pull for batch in gpu.batches), default=gpu.pull) * width / 100
    return max(1.0, width / plan.shares[number].percent) * (1.0 + sum(pulls) + beside)


def _account(gpu: SharedGpu, plan: SharingPlan, busy: float, away_s: list[float], now_s: float, run: SharedRun) -> None:
    """Work of the batch, and GPUs that are held. ``busy``: services that have work, on average."""
    run.gpu_s += _EVERY_S * (len(gpu.sharers) if plan.mode is SharingMode.EXCLUSIVE else 1)
    if plan.mode is SharingMode.MPS and gpu.outage.includes(now_s):
        return
    working = sum(batch.works(now_s) for batch in gpu.batches)
    for at, batch in enumerate(gpu.batches, len(gpu.services)):
        if not batch.works(now_s) or away_s[at] > now_s:
            continue
        pace = 1.0
        if plan.mode is SharingMode.TIME_SLICING:
            pace = 1.0 / (_SWITCHING * (working + busy))
        elif plan.mode is SharingMode.MPS:
            pace = min(1.0, plan.shares[at].percent / max(1, batch.sharer.width_percent))
        run.batch_s += _EVERY_S * pace


def _pressure(clients: Sequence[_Client], now_s: float) -> Pressure:
    """The 99th percentile of the last minutes over what is promised, of the service that is worst off."""
    worst = None
    for client in clients:
        while client.recent and client.recent[0][0] < now_s - _WINDOW_S:
            client.recent.popleft()
        if len(client.recent) >= _FEWEST:
            late = heapq.nlargest(max(1, len(client.recent) // 100), (late_s for _, late_s in client.recent))[-1]
            worst = max(worst or 0.0, late / client.service.promised_s)
    return Pressure(worst)


def _restart(gpu: SharedGpu, before: SharingPlan, after: SharingPlan, away_s: list[float], now_s: float) -> None:
    """Of the batch whose part changes; of all batch where the mode does."""
    for at, (old, new) in enumerate(zip(before.shares, after.shares, strict=True)):
        if at >= len(gpu.services) and (before.mode is not after.mode or old.percent != new.percent):
            away_s[at] = now_s + gpu.restart_s
