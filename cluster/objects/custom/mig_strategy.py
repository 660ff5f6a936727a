"""``MIGStrategy`` (kgwe.nvidia.io/v1): which MIG instances are expected on the GPUs of a set of nodes, or which
partitions of AMD's, named by their mode: ``cpx_nps4``."""

import contextlib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.gpu import Vendor
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu, gpu_catalogue
from kopt.core.hardware.amd_modes import ModeError, mode_names, modes_of

CLASS_LABEL, PRODUCT_LABEL = "gpu.nvidia.com/class", "nvidia.com/gpu.product"
_PROFILE = re.compile(r"(\d{1,2})g\.(\d{1,4})gb")
_SHARE = re.compile(r"(\d{1,3})%?")
_SPAN = re.compile(r"(?:\d{1,6}(?:ms|s|m|h))+")
_PART = re.compile(r"(\d+)(ms|s|m|h)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_THRESHOLD = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)(%?)")
REBALANCE_S = 300.0
"""Where a strategy names no interval."""


class StrategyError(ValueError):
    """A MIGStrategy that cannot be followed; the message says what to write."""


@dataclass(frozen=True)
class MigStrategy:
    """``shares``: percent of instances by profile; they add up to 100. ``rebalance_s``: a node is not cut again sooner
    than so long after the last time. ``min_utilization``: below this share of compute slices in use (0 to 1) idle nodes
    are cut for the shares alone, with nobody waiting; None for never."""

    name: str
    selector: Mapping[str, str]
    shares: Mapping[str, int]
    rebalance_s: float = REBALANCE_S
    min_utilization: float | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it is for a node with these labels."""
        return all(
            labels.get(key) == value or (key == CLASS_LABEL and _is_class(value, labels.get(PRODUCT_LABEL, "")))
            for key, value in self.selector.items()
        )


def read_strategy(document: Object) -> MigStrategy:
    """Raises StrategyError."""
    shares: dict[str, int] = {}
    for _, item in items(document, "spec", "partitionStrategy", "preferredProfiles"):
        for profile, written in mapping(item).items():
            match = _SHARE.fullmatch(str(written))
            if match is None:
                raise StrategyError(f"the share of {profile} is {str(written)[:20]!r}; write a percentage such as 70%")
            if profile not in _profiles() | mode_names():
                nearest = ", ".join(sorted(mode_names()) if "_nps" in profile else _nearest(profile))
                raise StrategyError(f"no GPU has a MIG profile or mode {profile[:40]!r}; nearest: {nearest}")
            shares[profile] = shares.get(profile, 0) + int(match[1])
    if sum(shares.values()) != 100:
        raise StrategyError(f"the shares add up to {sum(shares.values())} %, not to 100 %")
    _require_common_model(shares)
    selector = {key: str(value) for key, value in mapping(document, "spec", "nodeSelector").items()}
    partition = mapping(document, "spec", "partitionStrategy")
    return MigStrategy(
        text(document, "metadata", "name"),
        selector,
        shares,
        _interval_s(partition.get("rebalanceInterval")),
        _threshold(partition.get("minUtilizationThreshold")),
    )


def _interval_s(value: object) -> float:
    """Of a span as Go writes it: 5m, 1h30m."""
    if value is None:
        return REBALANCE_S
    if not isinstance(value, str) or not _SPAN.fullmatch(value):
        raise StrategyError(f"rebalanceInterval is {str(value)[:20]!r}; write a span such as 5m or 1h30m")
    return sum(int(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(value))


def _threshold(value: object) -> float | None:
    if value is None:
        return None
    match = None if isinstance(value, bool) else _THRESHOLD.fullmatch(str(value))
    share = float(match[1]) / (100.0 if match[2] else 1.0) if match else 2.0
    if share > 1:
        raise StrategyError(f"minUtilizationThreshold is {str(value)[:20]!r}; write a share such as 0.3 or 30%")
    return share


def _require_common_model(shares: Mapping[str, int]) -> None:
    """Of a node, and so of a strategy, all instances are cut from GPUs of one model."""
    models = [model for model in gpu_catalogue().values() if model.vendor is Vendor.NVIDIA]
    sets = {model.name: {profile.name for profile in model.partitions} for model in models} | _modes()
    if not any(shares.keys() <= profiles for profiles in sets.values()):
        of_each = "; ".join(
            f"{profile} of {', '.join(name for name, profiles in sets.items() if profile in profiles)}"
            for profile in shares
        )
        raise StrategyError(f"no GPU model has all of these profiles: {of_each}")


@functools.cache
def _modes() -> dict[str, set[str]]:
    """Those that AMD has validated, by model."""
    result = {}
    for model in gpu_catalogue().values():
        if model.vendor is Vendor.AMD:
            with contextlib.suppress(ModeError):
                result[model.name] = {each.mode.name for each in modes_of(model).validated}
    return result


@functools.cache
def _profiles() -> frozenset[str]:
    models = (model for model in gpu_catalogue().values() if model.vendor is Vendor.NVIDIA)
    # A card of two devices has partitions that are none of MIG's.
    return frozenset(each.name for model in models for each in model.partitions if _PROFILE.fullmatch(each.name))


def _nearest(profile: str) -> list[str]:
    """Three with about as many compute slices and as much memory; all where it has not the form of a profile."""
    wanted = _PROFILE.fullmatch(profile)
    if wanted is None:
        return sorted(_profiles())

    def distance(other: str) -> tuple[int, int]:
        match = _PROFILE.fullmatch(other)
        assert match is not None, "profiles of the catalogue have this form"
        return abs(int(match[1]) - int(wanted[1])), abs(int(match[2]) - int(wanted[2]))

    return sorted(sorted(_profiles()), key=distance)[:3]


def _is_class(value: str, product: str) -> bool:
    """``H100`` is the class of NVIDIA-H100-80GB-HBM3."""
    if value.lower() in re.split(r"[-_ ]", product.lower()):
        return True
    try:
        return find_gpu(value) == find_gpu(product)
    except UnknownGpuError:
        return False
