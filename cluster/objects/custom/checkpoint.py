"""Whose word a pod's annotations about its checkpoints are: the log agent's, or a claim of the pod's owner.

``kaiwo.ai/checkpoint-state`` and ``kaiwo.ai/last-checkpoint-*`` are open to users. The agent writes the time and the
model beside them, which the admission policy of the chart keeps to our accounts; it never calls a write safe, and knows
of no checkpoint after the time of its own word.
"""

from collections.abc import Mapping
from typing import Any

from kopt.core.times import seconds_or_none
from kopt.core.workload.checkpoint import JobState, Source

_STATE, _SAFE = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe"
_OBSERVED_AT, _MODEL = "kaiwo.ai/checkpoint-observed-at", "kaiwo.ai/checkpoint-model"
_FIGURES = ("kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step", "kaiwo.ai/work-at-risk")
_SKEW_S = 60.0


def source_of(annotations: Mapping[str, Any]) -> Source | None:
    """None without such annotations. Those that contradict the agent's own rules count as a claim as a whole."""
    figures = any(annotations.get(name) for name in _FIGURES)
    if not figures and not annotations.get(_STATE):
        return None
    # Before any model has answered, the agent says that nothing is known.
    silent = not figures and annotations.get(_STATE) == JobState.UNKNOWN
    named = bool(annotations.get(_OBSERVED_AT)) and (silent or bool(annotations.get(_MODEL)))
    contradicted = claims_write(annotations) or _is_ahead(annotations)
    return Source.AGENT if named and not contradicted else Source.CLAIM


def claims_write(annotations: Mapping[str, Any]) -> bool:
    """Whether a pod's owner says that it writes, and the log agent that it is safe."""
    return bool(annotations.get(_STATE) == JobState.CKPT_WRITING and annotations.get(_SAFE) == "true")


def _is_ahead(annotations: Mapping[str, Any]) -> bool:
    last_s, observed_s = (seconds_or_none(annotations.get(name)) for name in (_FIGURES[0], _OBSERVED_AT))
    return last_s is not None and observed_s is not None and last_s > observed_s + _SKEW_S
