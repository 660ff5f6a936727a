"""Traces written by hand for tests: a stream of events in a few words."""

import io
import json
import struct
from typing import Any

import numpy as np

from kopt.tracing.events import COLUMNS, Event, Trace, read_events

HELLO = {"torch": "2.15.0", "cuda": "13.2", "hip": None, "python": "3.11", "probe": 1, "allocator_conf": "", "argv": []}


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<BI", kind, len(payload)) + payload


def message(**content: Any) -> bytes:
    return frame(0, json.dumps(content).encode())


def rows(*events: tuple[int, ...]) -> bytes:
    table = [(*one, *(0,) * (COLUMNS - len(one))) for one in events]
    return frame(1, np.array(table, dtype="<i8").tobytes())


def read(*frames: bytes) -> Trace:
    return read_events(io.BytesIO(message(hello=HELLO) + b"".join(frames)))


def training(*sizes: int, **options: Any) -> Trace:
    """The trace of ``training_stream``."""
    return read_events(io.BytesIO(training_stream(*sizes, **options)))


def training_stream(
    layers: int = 4,
    weight: int = 8 << 20,
    activation: int = 4 << 20,
    steps: int = 3,
    conf: str = "",
    end: str = "steady",
) -> bytes:
    """A made-up training loop: weights, then per step activations forward, gradients backward, optimizer state."""
    names = ["", "load", "forward", "backward", "optimizer", "gemm", *(f"layers.{n}" for n in range(layers))]
    load, forward, backward, optimizer, gemm = range(1, 6)
    events: list[tuple[int, ...]] = [(Event.PHASE, load, 0)]
    fresh = iter(range(1, 10**9))
    module = [names.index(f"layers.{n}") for n in range(layers)]

    def keep(size: int, role: int, where: int) -> int:
        storage = next(fresh)
        events.extend([(Event.ALLOC, storage, size, 0, where), (Event.ROLE, storage, role)])
        return storage

    weights = [keep(weight, 1, m) for m in module]
    state: list[int] = []
    for step in range(steps):
        events.append((Event.PHASE, forward, step))
        held = []
        for n, m in enumerate(module):
            held.append(keep(activation, 6, m))
            events.append((Event.OP, step * 100 + n, 2 * weight * 16, weight + activation, m, gemm))
        events.append((Event.WORKSPACE, gemm, 8 << 20))
        events.append((Event.PHASE, backward, step))
        gradients = []
        for m in reversed(module):
            gradients.append(keep(weight, 2, m))
            events.append((Event.FREE, held.pop()))
        events.append((Event.PHASE, optimizer, step))
        if not state:
            state = [keep(2 * weight, 3, m) for m in module]
        events.extend((Event.FREE, one) for one in gradients)
    count = len(weights) * weight // 4
    return b"".join(
        [
            message(hello={**HELLO, "allocator_conf": conf}),
            *(message(name=[n, text]) for n, text in enumerate(names) if n),
            rows(*events),
            message(parameters={"count": count, "trainable": count, "bytes": 4 * count}),
            message(end={"reason": end, "steps": steps, "error": None}),
        ]
    )
