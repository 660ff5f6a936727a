"""A share of one GPU, or the same share of several, as users ask for it, and what of it can be enforced: types and
their grammar.

Amounts are whole milli-GPU and MiB, so that 0.1 and 0.2 are 0.3. A guarantee is what a pod can count on, a limit how
far it may grow; without a limit nothing is asked about what happens above the guarantee.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.units import WHOLE_GPU, MilliGpu, UnitError, format_gpus, parse_bytes, parse_milli_gpu

FRACTION, MEMORY = "kaiwo.ai/gpu-fraction", "kaiwo.ai/gpu-memory"
FRACTION_LIMIT, MEMORY_LIMIT = "kaiwo.ai/gpu-fraction-limit", "kaiwo.ai/gpu-memory-limit"
ISOLATION = "kaiwo.ai/gpu-isolation"
COUNT = "kaiwo.ai/gpu-count"
CHARGE_RESOURCE = "kaiwo.ai/milli-gpu"
"""What a queue of Kueue has quota for to be charged for shares by claims: thousandths of a GPU."""
LEAST = MilliGpu(100)
MOST_GPUS = 32
"""Devices of one ResourceClaim (``AllocationResultsMaxSize``, resource.k8s.io/v1); no node has more GPUs either."""
_MIB = re.compile(r"[1-9][0-9]{0,6}")
_COUNT = re.compile(r"[1-9][0-9]?")


class ShareError(ValueError):
    """A request for a share that cannot be read; the message names the annotation and what it should be."""


class Isolation(StrEnum):
    """How processes on one GPU are kept apart."""

    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"
    PARTITION = "partition"
    NONE = "none"


class ShareField(StrEnum):
    """What a request can say. Of a guarantee ``enforced`` means that no more of a GPU is given than there is; of a
    limit, that a process which takes more is refused it or slowed down."""

    FRACTION = "fraction"
    MEMORY = "memory"
    FRACTION_LIMIT = "fraction-limit"
    MEMORY_LIMIT = "memory-limit"


class Enforcement(StrEnum):
    """``NOT_ENFORCED``: it can be written, and is not kept; ``NOT_EXPRESSIBLE``: there is no word for it."""

    ENFORCED = "enforced"
    NOT_ENFORCED = "not enforced"
    NOT_EXPRESSIBLE = "not expressible"


class ShareExecutor(StrEnum):
    """What hands out shares of the GPUs of a node. ``DRA_HAMI`` is HAMi's driver for dynamic resource allocation;
    ``TIME_SLICING`` and ``MPS`` are replicas of NVIDIA's device plugin."""

    DRA_HAMI = "dra-hami"
    DRA = "dra"
    HAMI = "hami"
    VOLCANO = "volcano"
    MPS = "mps"
    KAI = "kai"
    TIME_SLICING = "time-slicing"


@dataclass(frozen=True)
class ShareRequest:
    """Of each of ``count`` different GPUs of a node. 0 where nothing is asked: a guarantee stands in one of ``milli``
    and ``mib`` at least."""

    milli: MilliGpu = MilliGpu(0)
    mib: int = 0
    limit_milli: MilliGpu = MilliGpu(0)
    limit_mib: int = 0
    isolation: Isolation | None = None
    count: int = 1

    @property
    def fields(self) -> tuple[ShareField, ...]:
        """What is asked."""
        amounts = (self.milli, self.mib, self.limit_milli, self.limit_mib)
        return tuple(field for field, amount in zip(ShareField, amounts, strict=True) if amount)

    def __str__(self) -> str:
        gpus = "a GPU" if self.count == 1 else f"each of {self.count} GPUs"
        parts = [f"{format_gpus(self.milli)} of {gpus}"] if self.milli else []
        parts += [f"{self.mib} MiB of GPU memory"] if self.mib else []
        limits = [format_gpus(self.limit_milli)] if self.limit_milli else []
        limits += [f"{self.limit_mib} MiB"] if self.limit_mib else []
        several = f" of {gpus}" if self.count > 1 and not self.milli else ""
        text = " with ".join(parts) + several + (f", at most {' and '.join(limits)}" if limits else "")
        return text + (f", isolation {self.isolation}" if self.isolation else "")


def parse_share(annotations: Mapping[str, Any]) -> ShareRequest | None:
    """The share that a pod's annotations ask for; None where they ask for none. Raises ShareError."""
    if not any(name in annotations for name in (FRACTION, MEMORY, FRACTION_LIMIT, MEMORY_LIMIT, COUNT)):
        return None
    milli, mib = _fraction(annotations, FRACTION), _mib(annotations, MEMORY)
    limit_milli, limit_mib = _fraction(annotations, FRACTION_LIMIT), _mib(annotations, MEMORY_LIMIT)
    for limit, amount, names in (
        (limit_milli, milli, (FRACTION_LIMIT, FRACTION)),
        (limit_mib, mib, (MEMORY_LIMIT, MEMORY)),
    ):
        if limit and not amount:
            raise ShareError(f"{names[0]} is a limit above {names[1]}, which is not there")
        if limit and limit < amount:
            raise ShareError(f"{names[0]} {annotations[names[0]]} is less than {names[1]} {annotations[names[1]]}")
    if not milli and not mib:
        raise ShareError(f"{COUNT} says of how many GPUs {FRACTION} or {MEMORY} is a part, and neither is there")
    return ShareRequest(milli, mib, limit_milli, limit_mib, _isolation(annotations), gpu_count(annotations))


def gpu_count(annotations: Mapping[str, Any]) -> int:
    """Of how many GPUs a share is asked; 1 where nothing says so. Raises ShareError."""
    value = annotations.get(COUNT, "1")
    if isinstance(value, str) and _COUNT.fullmatch(value) and int(value) <= MOST_GPUS:
        return int(value)
    raise ShareError(f"{COUNT} is a whole number of GPUs from 1 to {MOST_GPUS}, and not {str(value)[:20]!r}")


def _fraction(annotations: Mapping[str, Any], name: str) -> MilliGpu:
    if name not in annotations:
        return MilliGpu(0)
    value = annotations[name]
    try:
        milli = parse_milli_gpu(value) if isinstance(value, str) and len(value) < 20 else None
    except UnitError as error:
        raise ShareError(f"{name}: {error}") from None
    if milli is None or not LEAST <= milli <= WHOLE_GPU:
        raise ShareError(f"{name} is a part of one GPU from 0.1 to 1, like 0.25, and not {str(value)[:20]!r}")
    return milli


def _mib(annotations: Mapping[str, Any], name: str) -> int:
    if name not in annotations:
        return 0
    value = annotations[name]
    if isinstance(value, str) and _MIB.fullmatch(value):
        return int(value)
    raise ShareError(f"{name} is a whole number of MiB, like 20480, and not {str(value)[:20]!r}{_meant(value)}")


def _meant(value: object) -> str:
    try:
        mib = parse_bytes(str(value)[:20]) >> 20
    except UnitError:
        return ""
    return f"; write {mib}" if mib else ""


def _isolation(annotations: Mapping[str, Any]) -> Isolation | None:
    value = annotations.get(ISOLATION)
    if value is None:
        return None
    try:
        return Isolation(value)
    except ValueError:
        choices = ", ".join(Isolation)
        raise ShareError(f"{ISOLATION} is one of {choices}, and not {str(value)[:20]!r}") from None
