"""What our own writers write onto objects; drawn values differ from these in some places."""

from collections.abc import Mapping
from typing import Any

from .objects import GPU, notes

EXAMPLES: Mapping[str, Any] = {
    "kaiwo.ai/sizing-state": {
        "phase": "sized",
        "since_s": 1.8e9,
        "asked": {"resources": {"train": {"limits": {GPU: "1"}}}, "fraction": None, "backoff_limit": 6},
        "tries": 0,
        "granted_bytes": 1,
        "need_bytes": 1,
        "seen": ["u"],
        "type": "d",
        "stopped": False,
    },
    "kaiwo.ai/held-undo": {
        "suspend": False,
        "active": True,
        "gates": ["kaiwo.ai/preemption"],
        "queue": "gpus",
        "priority": 1,
        "raised": 1001,
        "for": "uid",
        "until": "2026-11-23T12:00:00Z",
        "since": "2026-11-23T12:00:00Z",
        "then": ["staging"],
        "asked": {"resources": {}, "fraction": None, "backoff_limit": 1},
        "quota": [{"at": ["h100", GPU], "own": "4", "set": "8"}],
    },
    "kaiwo.ai/evicting": {
        "by": "kopt-preemption",
        "cause": "Preempted",
        "for": "tenant/x",
        "at": "2026-11-23T12:00:00Z",
        "reason": "x",
        "pods": 1,
        "model": "logs/7",
        "workAtRisk": "1-2",
    },
    "kaiwo.ai/preemption": {
        "verdict": "PREEMPT",
        "until": "2026-11-23T12:00:00Z",
        "at": "2026-11-23T12:00:00Z",
        "victims": ["tenant/a-runs"],
        "reason": "x",
        "code": "X",
        "since": "2026-11-23T12:00:00Z",
    },
    "kaiwo.ai/save-requested": {
        "at": "2026-11-23T12:00:00Z",
        "until": "2026-11-23T12:05:00Z",
        "by": "kopt-preemption",
        "reason": "x",
        "for": "tenant/x",
    },
    "kaiwo.ai/staging": {
        "state": "held",
        "reason": "x",
        "bytes": 1,
        "bytesDone": 1,
        "secondsLeft": 1.0,
        "at": "2026-11-23T12:00:00Z",
        "data": [{"name": "a", "phase": "Staging", "bytes": 1}],
    },
    "kaiwo.ai/reallocation": {"pool": "p", "gpus": 1, "verb": "lend", "at": "2026-11-23T12:00:00Z"},
    "kaiwo.ai/staged-data": "a-data,other",
    "kaiwo.ai/stage": "s3://b/x -> pvc://claim/x",
    "kaiwo.ai/pair": "h0,h1",
    **notes(),
    "kaiwo.ai/saves-on-request": "true",
    "kaiwo.ai/gpu-fraction": "0.5",
    "kaiwo.ai/gpu-memory": "1024",
    "kaiwo.ai/gpu-indices": "0,1",
    "kaiwo.ai/held": "profiling",
    "kaiwo.ai/term": "kopt-system/kopt-sizing/1",
    "kaiwo.ai/checkpoint-logs": "/var/log/x",
    "kaiwo.ai/mode": "enforce",
}
"""What our own writers write; drawn values differ from these in some places."""
