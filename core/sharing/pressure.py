"""What is measured of GPUs that pods share, and of pods while each has a GPU alone."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pressure:
    """Of one GPU, as measured; None where it is not. ``slowdown``: the latency of its worst pod over what was promised,
    or its step over that alone. ``sm_active`` and ``memory``: shares of the GPU, 0 to 1."""

    slowdown: float | None = None
    sm_active: float | None = None
    memory: float | None = None


@dataclass(frozen=True)
class SmUse:
    """SMs of one GPU, as shares from 0 to 1, at the 95th percentile over time: how many a pod uses, and how many of
    them it fills while it runs."""

    use: float
    width: float
