"""Profiles of AMD's device config manager: the ConfigMap that it divides the GPUs of a node by.

A profile (``gpu-config-profiles`` of ``config.json``) is a list of modes, each for a number of GPUs or, without one,
for the rest. Which one a node has is its label ``dcm.amd.com/gpu-config-profile``; the answer is ``…-state``,
``success`` or ``failure``. The manager acts as the label changes, and wants the node tainted meanwhile
(ROCm/device-config-manager, pkg/config_manager at fe98bdae1770; ROCm/gpu-operator,
docs/dcm/applying-partition-profiles.rst at 6df13c1788c9).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.hardware.amd_modes import AmdMode, ModeError, amd_mode
from kopt.core.untrusted import UnreadableError, decode_mapping

PROFILE_LABEL, PROFILE_STATE_LABEL = "dcm.amd.com/gpu-config-profile", "dcm.amd.com/gpu-config-profile-state"
DONE, FAILED = "success", "failure"
TAINT_KEY, TAINT_VALUE = "amd-dcm", "up"
FILE = "config.json"
"""The key of the ConfigMap."""
_MOST_PARTS, _MOST_GPUS = 16, 64


class ProfileError(ValueError):
    """What is no list of profiles; the message says where it was read."""


@dataclass(frozen=True)
class Profile:
    """``parts``: each mode and for how many GPUs, None for the rest. ``skips``: how many GPUs it leaves as they are."""

    parts: tuple[tuple[AmdMode, int | None], ...]
    skips: int = 0


def read_profiles(document: Object) -> Mapping[str, Profile]:
    """By name; one that cannot be read is left out. Raises ProfileError for a file that cannot be read."""
    written = text(document, "data", FILE)
    where = "/".join(text(document, "metadata", name) for name in ("namespace", "name"))
    if not written:
        raise ProfileError(f"ConfigMap {where} has no {FILE}")
    try:
        content = decode_mapping(written)
    except UnreadableError as error:
        raise ProfileError(f"{FILE} of ConfigMap {where} is no JSON object: {error}") from error
    profiles = {str(name): _profile(item) for name, item in mapping(content, "gpu-config-profiles").items()}
    return {name: profile for name, profile in profiles.items() if profile is not None}


def _profile(document: object) -> Profile | None:
    parts = []
    for _, part in items(document, "profiles"):
        count = mapping(part).get("numGPUsAssigned")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= _MOST_GPUS):
            return None
        try:
            parts.append((amd_mode(f"{text(part, 'computePartition')}/{text(part, 'memoryPartition')}"), count))
        except ModeError:
            return None
    skips = sum(1 for _ in items(document, "skippedGPUs", "ids"))
    return Profile(tuple(parts), skips) if 0 < len(parts) <= _MOST_PARTS else None


def with_dcm_taint(node: Object) -> Object:
    """The ``spec`` of a merge patch that adds the manager's taint: what does not tolerate it ends."""
    return {"taints": [*_others(node), {"key": TAINT_KEY, "value": TAINT_VALUE, "effect": "NoExecute"}]}


def without_dcm_taint(node: Object) -> Object:
    """The ``spec`` of a merge patch that takes the manager's taint away; empty where there is none."""
    others = _others(node)
    return {"taints": others or None} if len(others) < sum(1 for _ in items(node, "spec", "taints")) else {}


def _others(node: Object) -> list[Object]:
    return [taint for _, taint in items(node, "spec", "taints") if text(taint, "key") != TAINT_KEY]
