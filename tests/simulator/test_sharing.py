"""The replay of services beside batch: published slow-downs come out, and the ladder ends what disturbs."""

import pytest

from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.policies.fractions.ladder import LadderSettings, rungs
from kopt.policies.fractions.sharing import (
    ClientShare,
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    plan_claim,
)
from kopt.simulator.sharing import Batch, Outage, Service, SharedGpu, SharedRun, replay

HOUR_S = 3600.0


def gpu(width: int, pull: float, promised_s: float = 1.0, outage: Outage = Outage()) -> SharedGpu:  # noqa: B008
    """A request each second of 0.2 s."""
    service = Sharer("chat", WorkloadClass.INFERENCE, width, 10, 8000)
    batch = Sharer("train", WorkloadClass.UNATTENDED, 90, 90, 8000)
    arrivals = [float(second) for second in range(int(2 * HOUR_S))]
    return SharedGpu([Service(service, arrivals, 0.2, promised_s)], [Batch(batch, pull)], outage)


def fixed(of: SharedGpu, service: int, batch: int, mode: SharingMode = SharingMode.MPS) -> SharedRun:
    plan = SharingPlan(mode, 2, (ClientShare("chat", service, 8000), ClientShare("train", batch, 8000)))
    return replay(of, [plan], HOUR_S)


def is_late(width: int, share: int, batch: int, pull: float, promised_s: float) -> bool:
    run = fixed(gpu(width, pull, promised_s), share, batch)
    assert run.late in (0, run.requests)
    return run.late > 0


@pytest.mark.parametrize(
    ("share", "published"),
    [(10, 57.6 / 14.1), (20, 30.8 / 14.1), (80, 14.3 / 14.1), (90, 1.0)],
)
def test_fewer_sms_than_it_fills_slow_a_service_as_published(share: int, published: float) -> None:
    """DenseNet-121 with a part of the threads alone; it fills some 42 % of the SMs."""
    assert not is_late(42, share, 1, 0.0, 0.2 * published * 1.05)
    assert share >= 42 or is_late(42, share, 1, 0.0, 0.2 * published * 0.9)


@pytest.mark.parametrize(("share", "batch", "published"), [(90, 10, 1.07), (80, 20, 1.14)])
def test_a_neighbour_slows_a_service_as_published(share: int, batch: int, published: float) -> None:
    assert not is_late(42, share, batch, 0.7, 0.2 * published * 1.02)
    assert is_late(42, share, batch, 0.7, 0.2 * (1 + 0.9 * (published - 1)))


def test_in_turns_a_service_waits_for_the_batch() -> None:
    assert fixed(gpu(42, 0.0, 0.45), 50, 50, SharingMode.TIME_SLICING).late == 0
    run = fixed(gpu(42, 0.0, 0.4), 50, 50, SharingMode.TIME_SLICING)
    assert run.late == run.requests


def laddered(of: SharedGpu) -> SharedRun:
    hardware = SharingHardware(SharingExecutor.DRA, 81_559, (9, 0))
    plan = plan_claim(hardware, of.sharers, SharingSettings())
    return replay(of, rungs(plan, hardware, of.sharers, SharingSettings()), 2 * HOUR_S, LadderSettings())


def test_the_ladder_ends_contention_and_keeps_sharing_where_there_is_none() -> None:
    calm = laddered(gpu(40, 0.1))
    assert (calm.late, calm.moves, calm.gpu_s) == (0, 0, 2 * HOUR_S)
    pulled = gpu(40, 3.0, 0.35)
    assert fixed(pulled, 48, 52).late > 3000
    run = laddered(pulled)
    assert run.moves >= 1
    assert run.late < 0.2 * run.requests
    assert run.gpu_s < 4 * HOUR_S


def test_while_the_daemon_is_away_pods_have_gpus_of_their_own() -> None:
    away = gpu(40, 0.1, outage=Outage(1800.0, 3600.0))
    run = laddered(away)
    assert run.late < 100
    assert 1800.0 <= run.rungs_s[max(run.rungs_s)] < 6000.0
    assert fixed(away, 48, 52).late > 1000
