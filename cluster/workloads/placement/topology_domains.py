"""Where a node is in the network, from the labels that node agents write."""

from collections.abc import Mapping
from typing import Any

LEVELS = (
    ("kaiwo.ai/topology-block", "block"),
    ("kaiwo.ai/topology-rack", "rack"),
    ("kaiwo.ai/nvlink-domain", "NVLink domain"),
)
"""Outermost first."""


def domains_of_node(labels: Mapping[str, Any]) -> tuple[str, ...]:
    """``("block b1", "rack r3")``; unknown levels are left out."""
    return tuple(f"{level} {name}" for label, level in LEVELS if isinstance(name := labels.get(label), str) and name)
