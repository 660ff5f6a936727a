"""How far a policy may act on one workload: the nearest mode, and whether a gradual rollout has come to it."""

import zlib
from collections.abc import Iterable

from kopt.core.decision import Mode

_ORDER = (Mode.OBSERVE, Mode.ANNOTATE, Mode.ENFORCE)
_MODES: dict[str, Mode] = {mode.value: mode for mode in Mode}


def parse_mode(text: object) -> Mode | None:
    """The mode that an annotation names; None for anything else, so that a typing error changes nothing."""
    return _MODES.get(text) if isinstance(text, str) else None


def nearest_mode(workload: object, namespace: object, default: Mode, *, workload_may_lower: bool = True) -> Mode:
    """The mode of a workload from its own annotation, else its namespace's, else the policy's.

    With ``workload_may_lower=False`` a workload can ask for more than its namespace, never for less.
    """
    around = parse_mode(namespace) or default
    own = parse_mode(workload)
    if own is None:
        return around
    return own if workload_may_lower or _ORDER.index(own) > _ORDER.index(around) else around


def is_reached(percent: int, parts: Iterable[str]) -> bool:
    """Whether a rollout of ``percent`` of all workloads includes the one that ``parts`` name.

    The same workload is always on the same side, and who was in at 10 % is in at 20 %.
    """
    return percent >= 100 or zlib.crc32("/".join(parts).encode(errors="surrogatepass")) % 100 < percent
