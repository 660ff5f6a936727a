"""Weeks of a fleet as its exporters, agents and jobs show them: faults of ten families, and what healthy nodes show.

Everything is random by seed: which nodes, when, which family, how often it shows, and how loud the healthy ones are.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kopt.core.hardware.health import Outcome

WEEK_S, DAY_S, HOUR_S, LOOK_S = 7 * 86400.0, 86400.0, 3600.0, 15.0
NODES, GPUS, FAULTY_SHARE = 120, 8, 0.1
APPLICATION_XIDS = (13, 31, 43, 45, 68, 69, 109)
FATAL_XIDS = (62, 64, 79, 95, 110, 120, 136, 140, 143, 158)
XID, DBE, SBE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
REPLAY, NVLINK = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
THROTTLE, REMAP_FAILED = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_ROW_REMAP_FAILURE"
COUNTED = "DCGM_EXP_XID_ERRORS_COUNT"


@dataclass(frozen=True)
class Shown:
    """What changes at one time on a node: a series is set to ``value`` or grows by it; of links, one falls. ``fault``:
    it is of the fault that was injected."""

    at_s: float
    node: str
    series: str
    gpu: int = 0
    value: float = 1.0
    grows: bool = False
    xid: int = 0
    fault: bool = False


@dataclass
class Week:
    """``faults``: onset and family by node."""

    faults: dict[str, tuple[float, str]] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)
    outcomes: list[tuple[Outcome, bool]] = field(default_factory=list)
    """With whether the fault made it fail."""


def week(seed: int) -> Week:
    chance = random.Random(seed)
    result = Week()
    names = [f"n{index}" for index in range(NODES)]
    for name in chance.sample(names, round(NODES * FAULTY_SHARE)):
        family = chance.choice(tuple(FAMILIES))
        onset_s = chance.uniform(0.1, 0.9) * WEEK_S
        result.faults[name] = onset_s, family
        result.shown += FAMILIES[family](chance, name, onset_s)
    rates = {name: chance.uniform(0.2, 5.0) for name in names}
    for name in names:
        result.shown += _noise(chance, name, rates[name])
    result.outcomes = _jobs(chance, names, result.faults)
    result.shown.sort(key=lambda item: item.at_s)
    return result


def _times(chance: random.Random, per_s: float, start_s: float = 0.0) -> Iterator[float]:
    at_s = start_s
    while per_s > 0 and (at_s := at_s + chance.expovariate(per_s)) < WEEK_S:
        yield at_s


def _noise(chance: random.Random, name: str, xids_per_day: float) -> Iterator[Shown]:
    """What healthy nodes show: programs that fail, single memory errors, short heat, restarts of exporters."""
    for gpu in range(GPUS):
        for at_s in _times(chance, xids_per_day / DAY_S):
            yield Shown(at_s, name, COUNTED, gpu, 1.0, grows=True, xid=chance.choice(APPLICATION_XIDS))
        for xid, per_week in ((63, 0.02), (74, 0.01), (94, 0.005), (119, 0.003), (61, 0.003)):
            for at_s in _times(chance, per_week / WEEK_S):
                yield Shown(at_s, name, COUNTED, gpu, 1.0, grows=True, xid=xid)
        for series, per_week, low, high in ((SBE, 0.1, 1, 200), (REPLAY, 0.1, 1, 60), (DBE, 0.003, 1, 1)):
            for at_s in _times(chance, per_week / WEEK_S):
                yield Shown(at_s, name, series, gpu, float(chance.randint(low, high)), grows=True)
        for at_s in _times(chance, 0.15 / WEEK_S):
            yield from _throttled(at_s, name, gpu, chance.uniform(15, 240), fault=False)
    for at_s in _times(chance, 1.0 / DAY_S * chance.random()):
        # A program that fails on all GPUs of a node, again and again.
        xid = chance.choice(APPLICATION_XIDS)
        for _ in range(chance.randint(1, 30)):
            at_s += chance.uniform(15, 120)
            for gpu in range(GPUS):
                yield Shown(at_s, name, COUNTED, gpu, 1.0, grows=True, xid=xid)
    for at_s in _times(chance, 0.05 / WEEK_S):
        yield Shown(at_s, name, "falls", 0, 1.0, grows=True)
    for at_s in _times(chance, 0.3 / WEEK_S):
        yield Shown(at_s, name, "restart")


def _throttled(at_s: float, name: str, gpu: int, lasts_s: float, *, fault: bool) -> Iterator[Shown]:
    ends_s = at_s + lasts_s
    while at_s < min(ends_s, WEEK_S):
        yield Shown(at_s, name, THROTTLE, gpu, float(0x40), fault=fault)
        at_s += LOOK_S
    yield Shown(at_s, name, THROTTLE, gpu, 0.0)


def _fatal(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    yield Shown(onset_s, name, XID, chance.randrange(GPUS), float(chance.choice(FATAL_XIDS)), fault=True)


def _repeated(*xids: int, series: str = "", least: float = 1.0) -> Callable[..., Iterator[Shown]]:
    def family(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
        gpu, per_hour = chance.randrange(GPUS), 10 ** chance.uniform(-0.3, 1.5)
        for at_s in _times(chance, per_hour / HOUR_S, onset_s):
            if xids and (not series or chance.random() < 0.5):
                yield Shown(at_s, name, COUNTED, gpu, 1.0, grows=True, xid=chance.choice(xids), fault=True)
            else:
                growth = least * chance.uniform(1, 5)
                yield Shown(at_s, name, series, gpu, float(round(growth)), grows=True, fault=True)

    return family


def _hot(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    gpu, at_s = chance.randrange(GPUS), onset_s
    while at_s < WEEK_S:
        hot_s = chance.uniform(300, 7200)
        yield from _throttled(at_s, name, gpu, hot_s, fault=True)
        at_s += hot_s + chance.uniform(15, 600)


def _remap(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    gpu, at_s = chance.randrange(GPUS), onset_s
    for _ in range(chance.randint(0, 6)):
        yield Shown(at_s, name, COUNTED, gpu, 1.0, grows=True, xid=63, fault=True)
        at_s += chance.uniform(15, 1800)
    yield Shown(at_s, name, REMAP_FAILED, gpu, 1.0, fault=True)


def _ras(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    yield Shown(onset_s, name, "gpu_health", chance.randrange(GPUS), 0.0, fault=True)


def _flaps(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    for at_s in _times(chance, 10 ** chance.uniform(0.3, 1.5) / HOUR_S, onset_s):
        yield Shown(at_s, name, "falls", 0, 1.0, grows=True, fault=True)


def _lemon(chance: random.Random, name: str, onset_s: float) -> Iterator[Shown]:
    yield from ()


FAMILIES: Mapping[str, Callable[[random.Random, str, float], Iterator[Shown]]] = {
    "fatal XID": _fatal,
    "uncorrectable memory": _repeated(48, 94, series=DBE),
    "correctable storm": _repeated(92, series=SBE, least=50),
    "row remapping": _remap,
    "NVLink": _repeated(74, series=NVLINK),
    "PCIe replays": _repeated(series=REPLAY, least=20),
    "heat": _hot,
    "RAS": _ras,
    "link flaps": _flaps,
    "jobs fail": _lemon,
}


def _jobs(
    chance: random.Random, names: list[str], faults: Mapping[str, tuple[float, str]]
) -> list[tuple[Outcome, bool]]:
    """Jobs of thirty people: most end well, some fail for themselves, some are broken and fail wherever they run."""
    rate, per_day = chance.uniform(0.03, 0.2), chance.uniform(8, 40)
    breaks = {name: chance.uniform(0.6, 1.0) for name in names}
    result = []
    number = 0
    for name in names:
        for at_s in _times(chance, per_day / DAY_S):
            number += 1
            onset_s, family = faults.get(name, (WEEK_S, ""))
            lemon = family == "jobs fail" and at_s >= onset_s and chance.random() < breaks[name]
            person = f"team-{chance.randrange(30)}"
            failed = lemon or chance.random() < rate
            kind = f"{person}/{chance.choice(('train', 'eval', 'sweep', 'tune'))}"
            result.append((Outcome(name, f"{kind}-{number}", failed, at_s, kind), lemon))
            if failed and not lemon and chance.random() < 0.5:
                # Its controller tries again, elsewhere, and it fails there, too.
                for _ in range(chance.randint(1, 3)):
                    other = Outcome(
                        chance.choice(names), f"{kind}-{number}", True, at_s + chance.uniform(60, 600), kind
                    )
                    result.append((other, False))
        if chance.random() < 0.1:
            # A person who starts what is broken again and again, always here.
            at_s = chance.uniform(0, WEEK_S)
            for again in range(chance.randint(5, 30)):
                job = f"team-x/debug-{again}"
                result.append((Outcome(name, job, True, at_s + 120 * again, "team-x/debug"), False))
    return sorted(result, key=lambda item: item[0].at_s)
