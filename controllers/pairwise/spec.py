"""A PairwiseBenchmark as the controller reads it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, count, items, mapping, text, texts
from kopt.core.hardware.bandwidth import Collective, collective
from kopt.policies.pairwise.budget import DAYS, Budget, Window

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([1-9]\d{0,3})([smhd])")


@dataclass(frozen=True)
class Benchmark:
    """``template`` is the user's pod; times are in seconds."""

    name: str
    uid: str
    document: Object
    template: Object
    selector: Mapping[str, str]
    resource: str
    gpus_per_node: int
    collectives: tuple[Collective, ...] = (Collective.ALL_REDUCE,)
    min_bytes: int = 8
    max_bytes: int = 1 << 30
    ssh_secret: str = "kopt-pairs-ssh"
    priority_class: str = ""
    idle_only: bool = True
    budget: Budget = Budget()
    partners: int = 32
    repeat_after_s: float = 7 * 86_400.0
    retry_after_s: float = 3600.0
    timeout_s: float = 600.0
    suspended: bool = False
    why_suspended: str = "spec.suspend is true"

    @property
    def gpus(self) -> int:
        """Of one test."""
        return 2 * self.gpus_per_node


def benchmark_of(document: Object) -> Benchmark:
    """Raises ValueError with the field that cannot be meant."""
    spec, metadata = mapping(document, "spec"), document["metadata"]
    resource, gpus = text(spec, "gpuResource"), count(spec, "gpusPerNode", default=0)
    if not resource or gpus < 1:
        raise ValueError("spec.gpuResource and spec.gpusPerNode say what a test needs of a node")
    template = at(spec, "template")
    if not isinstance(template, dict) or not list(items(template, "spec", "containers")):
        raise ValueError("spec.template has no container")
    least, most = _bytes(spec, "minBytes", 8), _bytes(spec, "maxBytes", 1 << 30)
    if least >= most:
        raise ValueError("spec.sizes.minBytes has to be below maxBytes")
    return Benchmark(
        metadata["name"],
        metadata["uid"],
        document,
        template,
        {str(key): str(value) for key, value in mapping(spec, "nodeSelector").items()},
        resource,
        gpus,
        tuple([collective(name) for name in texts(spec, "collectives")]) or (Collective.ALL_REDUCE,),
        least,
        most,
        text(spec, "sshSecret") or "kopt-pairs-ssh",
        text(spec, "priorityClassName"),
        at(spec, "idleNodesOnly") is not False,
        _budget(spec),
        count(spec, "partnersPerNode", default=32),
        _span(spec, "repeatAfter", "7d"),
        _span(spec, "retryAfter", "1h"),
        _span(spec, "timeout", "10m"),
        at(spec, "suspend") is True,
    )


def _budget(spec: Mapping[str, object]) -> Budget:
    a_day = at(spec, "gpuSecondsPerDay")
    limit = float(a_day) if isinstance(a_day, int) and not isinstance(a_day, bool) else 36_000.0
    windows = tuple([_window(item) for _, item in items(spec, "windows")])
    return Budget(max(1, count(spec, "maxPairsAtOnce")), limit, windows)


def _window(item: Mapping[str, object]) -> Window:
    return Window(
        _minute(text(item, "from")),
        _minute(text(item, "to")),
        frozenset(DAYS.index(day) for day in texts(item, "days")),
    )


def _minute(clock: str) -> int:
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)


def _bytes(spec: Mapping[str, object], name: str, default: int) -> int:
    result = at(spec, "sizes", name)
    return result if isinstance(result, int) and result > 0 else default


def _span(spec: Mapping[str, object], name: str, default: str) -> float:
    match = _SPAN.fullmatch(text(spec, name) or default)
    if match is None:
        raise ValueError(f"spec.{name} {text(spec, name)!r} is no span such as {default}")
    return float(int(match[1]) * _UNITS_S[match[2]])
