"""What a log agent writes onto the pods of a job."""

import time
from datetime import UTC, datetime


def stamp(from_now_s: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + from_now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def checkpoint_notes(state: str, safe: bool, lost: int, saved_s: float | None) -> dict[str, str]:
    """``lost`` in GPU-seconds; the last checkpoint is of ``saved_s`` from now, None where none is known of."""
    notes = {
        "kaiwo.ai/checkpoint-state": state,
        "kaiwo.ai/checkpoint-safe": str(safe).lower(),
        "kaiwo.ai/checkpoint-observed-at": stamp(),
        "kaiwo.ai/work-at-risk": str(lost),
        "kaiwo.ai/work-at-risk-interval": f"{lost // 2}-{lost * 2}",
        "kaiwo.ai/checkpoint-model": "logs/7",
    }
    if saved_s is not None:
        notes |= {"kaiwo.ai/last-checkpoint-time": stamp(saved_s), "kaiwo.ai/last-checkpoint-step": "500"}
    return notes
