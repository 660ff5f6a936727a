"""How far a training is, on its pods: written by the log agent or the trainer itself, read by who predicts its end."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.core.times import seconds
from kopt.core.workload.run_time import StepProgress

PROGRESS, PROGRESS_AT, STEP_SECONDS = "kaiwo.ai/progress", "kaiwo.ai/progress-at", "kaiwo.ai/step-seconds"
"""On pods, by the log agent or by the trainer itself."""
_STEPS = re.compile(r"(\d{1,15})/(\d{1,15})")
_LONGEST = 256


def progress_of(pods: Sequence[Object]) -> StepProgress | None:
    """What the annotations of a workload's pods say of its steps, the newest; None where they say none, or nonsense."""
    reported = [
        progress for pod in pods if (progress := _progress(mapping(pod, "metadata", "annotations"))) is not None
    ]
    return max(reported, key=lambda progress: progress.at_s, default=None)


def _progress(annotations: Mapping[str, Any]) -> StepProgress | None:
    match = _STEPS.fullmatch(text(annotations, PROGRESS))
    if match is None:
        return None
    try:
        at_s = seconds(text(annotations, PROGRESS_AT))
        times = tuple(float(word) for word in text(annotations, STEP_SECONDS)[:_LONGEST].split())
        return StepProgress(int(match[1]), int(match[2]), at_s, times)
    except ValueError:
        return None
