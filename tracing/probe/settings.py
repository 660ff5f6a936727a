"""What the caller chose, from the environment: the probe has no options, its command line is the script's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FakeGpu:
    """The device that the script sees. ``memory_bytes`` is what ``mem_get_info`` calls the total."""

    name: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 85_095_874_560
    compute_units: int = 108
    major: int = 8
    minor: int = 0
    gcn_arch: str = ""

    @property
    def cublas_workspace_bytes(self) -> int:
        """One per handle and stream: ``CUDABlas.cpp`` asks 4096 KiB x 2 + 16 KiB x 8, 32 MiB from Hopper on."""
        return 33_554_432 if self.major >= 9 or self.gcn_arch.startswith("gfx94") else 8_519_680


@dataclass(frozen=True)
class Settings:
    """``KOPT_EVENTS_FD``, ``KOPT_PROBE_GPU`` (JSON of :class:`FakeGpu`), ``KOPT_PROBE_WORLD_SIZE``,
    ``KOPT_PROBE_RANK``, ``KOPT_PROBE_CACHE`` (folder), ``KOPT_PROBE_MAX_STEPS``, ``KOPT_PROBE_DRAIN_SECONDS``."""

    events_fd: int
    gpu: FakeGpu
    world_size: int
    rank: int
    cache: Path
    max_steps: int
    drain_seconds: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Raises ``ValueError`` or ``TypeError`` for values that are no numbers or no GPU."""
        cache = environment.get("KOPT_PROBE_CACHE") or str(Path(environment.get("TMPDIR", "/tmp")) / "kopt-probe")
        world_size = int(environment.get("KOPT_PROBE_WORLD_SIZE") or environment.get("WORLD_SIZE") or 1)
        return cls(
            events_fd=int(environment.get("KOPT_EVENTS_FD", "-1")),
            gpu=FakeGpu(**json.loads(environment.get("KOPT_PROBE_GPU") or "{}")),
            world_size=max(1, world_size),
            rank=int(environment.get("KOPT_PROBE_RANK", "0")),
            cache=Path(cache),
            max_steps=int(environment.get("KOPT_PROBE_MAX_STEPS", "8")),
            drain_seconds=float(environment.get("KOPT_PROBE_DRAIN_SECONDS", "20")),
        )
