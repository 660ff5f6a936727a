"""What a script sees of a GPU of the catalogue when it asks the fake device: name, memory, architecture."""

import json

from kopt.core.gpu import GpuModel, Vendor

_CAPABILITIES = (
    ("V100", (7, 0)),
    ("T4", (7, 5)),
    ("A100", (8, 0)),
    ("A30", (8, 0)),
    ("A10", (8, 6)),
    ("A40", (8, 6)),
    ("RTX-3090", (8, 6)),
    ("RTX-A6000", (8, 6)),
    ("L40S", (8, 9)),
    ("L4", (8, 9)),
    ("RTX-4090", (8, 9)),
    ("RTX-6000-Ada", (8, 9)),
    ("GH200", (9, 0)),
    ("H100", (9, 0)),
    ("H200", (9, 0)),
    ("GB200", (10, 0)),
    ("B200", (10, 0)),
    ("RTX-5090", (12, 0)),
)
"""Compute capabilities by the beginning of the model's name (developer.nvidia.com/cuda-gpus)."""
_GCN = (
    ("MI100", "gfx908"),
    ("MI210", "gfx90a"),
    ("MI250X", "gfx90a"),
    ("MI3", "gfx942"),
    ("Radeon", "gfx1100"),
)
"""LLVM targets (rocm.docs.amd.com, "Accelerator and GPU hardware specifications")."""


def capability(model: GpuModel) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU, 8.0 where its name is not known; None for other vendors."""
    if model.vendor is not Vendor.NVIDIA:
        return None
    return next((result for name, result in _CAPABILITIES if model.name.startswith(name)), (8, 0))


def fake_gpu(model: GpuModel) -> str:
    """The JSON that the probe takes in KOPT_PROBE_GPU."""
    major, minor = capability(model) or (9, 0)
    gcn = ""
    if model.vendor is Vendor.AMD:
        gcn = "gfx950" if model.name.startswith("MI35") else _first(model.name)
        major, minor = (9, 5) if gcn == "gfx950" else (9, 4) if gcn == "gfx942" else (9, 0)
    properties = {
        "name": model.aliases[0] if model.aliases else model.name,
        "memory_bytes": int(model.usable_bytes),
        "compute_units": model.compute_units,
        "major": major,
        "minor": minor,
        "gcn_arch": gcn,
    }
    return json.dumps(properties)


def _first(name: str) -> str:
    return next((result for start, result in _GCN if name.startswith(start)), "gfx90a")
