"""The accelerators of a cluster in one list, whatever shows them, and the names that people call models by."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.units import Bytes


class Kind(StrEnum):
    """Kinds of accelerators."""

    GPU = "GPU"
    TPU = "TPU"
    FPGA = "FPGA"


class Source(StrEnum):
    """What shows an accelerator: devices of dynamic resource allocation, a device plugin's resource, or labels alone,
    of a device that nothing hands out."""

    SLICE = "slice"
    ALLOCATABLE = "allocatable"
    LABEL = "label"


@dataclass(frozen=True)
class Hardware:
    """``count`` like accelerators of a node. ``labels`` of the node name the model, so that a pod can ask for it by
    them; empty where only a claim can."""

    node: str
    kind: Kind
    model: str
    count: int
    memory_bytes: Bytes
    """Of each; 0 where nothing says it."""
    resource: str
    """What pods ask for: a resource, or a driver."""
    source: Source
    labels: tuple[tuple[str, str], ...] = field(default=())


_SLUG = re.compile(r"[a-z0-9.]+(?:-[a-z0-9.]+)*")
_TPU = {
    "tpu-v2": "tpu-v2",
    "tpu-v3": "tpu-v3",
    "tpu-v4": "tpu-v4",
    "tpu-v5e": "tpu-v5-lite",
    "tpu-v5p": "tpu-v5p",
    "tpu-v6e": "tpu-v6e",
    "tpu-v7": "tpu7x",
}
"""What Google calls generations in prose, and what the label of its nodes begins with."""
MODEL_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "gpu.nvidia.com/class",
    "cloud.google.com/gke-tpu-accelerator",
    "cloud.google.com/gke-accelerator",
)
"""Labels of nodes whose values name the model of their accelerators."""


def model_slug(name: str) -> str:
    """A name in lower case with dashes between its words. Raises ValueError for what is no name."""
    slug = re.sub(r"[\s_-]+", "-", name.strip().lower()).strip("-")
    if not _SLUG.fullmatch(slug) or len(slug) > 63:
        raise ValueError(f"{name[:80]!r} is no name of a model, as h100, mi300x or tpu-v5e")
    return slug


def model_pattern(name: str) -> str:
    """A regular expression (RE2) that finds a model in the names that labels, drivers and tools give it.

    ``h100`` is in ``NVIDIA-H100-80GB-HBM3`` but not in ``NVIDIA-GH100``. Raises ValueError for what is no name.
    """
    slug = model_slug(name)
    slug = _TPU.get(slug, slug)
    return "(?i)(^|[-_ ])" + slug.replace(".", "\\.").replace("-", "[-_ ]") + "($|[-_ ])"


def is_model(name: str, model: str) -> bool:
    """Whether a model is called by this name. Raises ValueError for what is no name."""
    return re.search(model_pattern(name), model) is not None
