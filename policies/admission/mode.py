"""How far a policy may act on one workload: the nearest mode, and whether a gradual rollout includes it."""

from collections.abc import Iterable
from typing import Protocol

from kopt.core.decision import Mode
from kopt.core.switches import is_included

_ORDER = (Mode.OBSERVE, Mode.ANNOTATE, Mode.ENFORCE)
_MODES: dict[str, Mode] = {mode.value: mode for mode in Mode}


def parse_mode(text: object) -> Mode | None:
    """The mode that an annotation names; None for anything else, so that a typo changes nothing."""
    return _MODES.get(text) if isinstance(text, str) else None


def nearest_mode(workload: object, namespace: object, default: Mode, *, workload_may_lower: bool = True) -> Mode:
    """The mode of a workload: its own annotation, else its namespace's, else the policy's.

    With ``workload_may_lower=False`` a workload can raise the mode of its namespace, never lower it.
    """
    around = parse_mode(namespace) or default
    own = parse_mode(workload)
    if own is None:
        return around
    return own if workload_may_lower or _ORDER.index(own) > _ORDER.index(around) else around


def effective_mode(workload: object, namespace: object, default: Mode, workload_may_lower: bool | None = None) -> Mode:
    """The mode in which our components may act on a workload: ``nearest_mode`` under the rule of the cluster
    (``workloadMode`` of the ConformancePolicy).

    ``workload_may_lower``: True is ``Any``, False ``NotLower``. None, the default, lets a workload lower the mode
    unless its namespace or policy says enforce: otherwise a user could leave the queues and keep lent GPUs with an
    annotation, although the opt-out requires the verb ``bypass``.
    """
    around = parse_mode(namespace) or default
    may_lower = around is not Mode.ENFORCE if workload_may_lower is None else workload_may_lower
    return nearest_mode(workload, namespace, default, workload_may_lower=may_lower)


class NamespaceMode(Protocol):
    """What a namespace says: whether we may act in it, and in which mode."""

    @property
    def managed(self) -> bool: ...

    @property
    def mode(self) -> str: ...


def mode_in(
    namespace: NamespaceMode | None, workload: object, default: Mode, workload_may_lower: bool | None = None
) -> Mode:
    """``effective_mode`` in a namespace that has opted in; OBSERVE in any other, and in one that is not known."""
    if namespace is None or not namespace.managed:
        return Mode.OBSERVE
    return effective_mode(workload, namespace.mode, default, workload_may_lower)


def is_reached(percent: int, parts: Iterable[str]) -> bool:
    """Whether a rollout to ``percent`` of all workloads includes the workload named by ``parts``.

    The answer for a workload is stable, and a workload included at 10 % is also included at 20 %.
    """
    return is_included(percent, tuple(parts))
