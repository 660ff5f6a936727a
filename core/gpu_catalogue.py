"""The catalogue of GPU models: memory, compute units, partitions and link speeds, as data with sources (gpus.toml).

Reading a resource of this package is this package's only I/O: the file is part of the code, the same on every machine.
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from kopt.core.gpu import GpuModel, PartitionProfile, Vendor
from kopt.core.units import GIB, Bytes

# Feature discovery marks time-sliced and partitioned GPUs by a suffix of the product's name.
_SHARING = re.compile(r"-(shared|mig-[0-9a-z.+-]+)$")


class UnknownGpuError(LookupError):
    """No model of this name; the message gives the nearest ones."""


@functools.cache
def gpu_catalogue() -> Mapping[str, GpuModel]:
    """Every model by its name."""
    table = tomllib.loads(resources.files("kopt.core").joinpath("gpus.toml").read_text(encoding="utf-8"))
    return MappingProxyType({row["name"]: _model(row) for row in table["gpu"]})


def find_gpu(name: str) -> GpuModel:
    """The model of a product name as ``nvidia-smi``, ``rocm-smi`` or a node label has it, or of a PCI id.

    ``NVIDIA H100 80GB HBM3``, ``NVIDIA-H100-80GB-HBM3-SHARED``, ``AMD_Instinct_MI300X_OAM``, ``10de:2330`` and
    ``h100`` are understood; case, spaces, dashes and underscores do not matter.

    Raises:
        UnknownGpuError: no such model.
    """
    names = _names()
    key = _SHARING.sub("", _key(name))
    gpu_model = names.get(key) or names.get(f"nvidia-{key}") or names.get(f"amd-{key}")
    if gpu_model is None:
        raise UnknownGpuError(f"no GPU model {name[:80]!r} in the catalogue; nearest: {_nearest(key[:80])}")
    return gpu_model


@functools.lru_cache(maxsize=256)
def _nearest(key: str) -> str:
    """Looked for once: thousands of nodes may have the same unknown model."""
    names = _names()
    near = difflib.get_close_matches(key, names, n=5, cutoff=0.4)
    return ", ".join(dict.fromkeys(names[item].name for item in near)) or ", ".join(gpu_catalogue())


@functools.cache
def _names() -> Mapping[str, GpuModel]:
    return {_key(alias): model for model in gpu_catalogue().values() for alias in (model.name, *model.aliases)}


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _model(row: Mapping[str, Any]) -> GpuModel:
    return GpuModel(
        name=row["name"],
        vendor=Vendor(row["vendor"]),
        memory_bytes=_bytes(row["memory_gib"]),
        usable_bytes=_bytes(row["usable_gib"]),
        compute_units=row["compute_units"],
        memory_gbps=float(row["memory_gbps"]),
        link=row.get("link", ""),
        link_gbps=float(row.get("link_gbps", 0)),
        pcie_gbps=float(row["pcie_gbps"]),
        aliases=tuple(row["aliases"]),
        partitions=tuple(
            PartitionProfile(name, _bytes(gib), units, count) for name, gib, units, count in row.get("partitions", ())
        ),
        source=row["source"],
    )


def _bytes(gib: float) -> Bytes:
    return Bytes(int(gib * GIB))
