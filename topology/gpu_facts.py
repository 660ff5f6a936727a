"""What is known of a GPU from its name: the catalogue, asked tolerantly."""

import re
from functools import lru_cache

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu, gpu_catalogue
from kopt.topology.graph import GpuSpecs

NVLINK_GBPS = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 50.0}
"""GB/s per direction of one link, by generation."""
_LINKS_OF_CARDS = 4
"""NVLink links of the smallest cards that have any."""
_BOARD_GBPS = {1: 80.0, 2: 150.0, 3: 300.0, 4: 450.0, 5: 900.0}
"""GB/s per direction of all links of a GPU, by generation."""
_FAMILIES = (
    (r"\bP100\b", 1, 732),
    (r"V100", 2, 900),
    (r"A100|A800|A30\b|A40\b|A6000|3090", 3, 1555),
    (r"GB200|GB300|B200|B300|B100", 5, 8000),
    (r"H100|H200|H800|H20\b|GH200", 4, 3350),
)
_PCIE3 = re.compile(r"P100|V100|P40|P4\b|T4\b|2080|TITAN|1080|K80", re.IGNORECASE)
_PCIE5 = re.compile(r"H100|H200|H800|H20\b|GH200|B200|B300|MI3\d\d|5090|PRO[ -]?6000", re.IGNORECASE)
NO_PEERS = re.compile(r"RTX[- ]?(2080|30[6789]0|40[6789]0|50[6789]0)", re.IGNORECASE)
"""Cards whose driver does not let them read each other's memory over PCIe."""
SUPERCHIP_RACK = re.compile(r"GB200|GB300", re.IGNORECASE)
"""Superchips whose trays the link switches of a rack join."""
RACK_GPUS = 72
"""GPUs of such a rack where nothing says more."""
XGMI_GBPS = {
    "MI100": 46.0,
    "MI210": 50.0,
    "MI250": 50.0,
    "MI300": 64.0,
    "MI308": 64.0,
    "MI325": 64.0,
    "MI350": 76.8,
    "MI355": 76.8,
}
"""GB/s per direction of one Infinity Fabric link; a link between two MI300 and later is sixteen lanes wide."""
_ARCHITECTURES = {
    "gfx908": "MI100",
    "gfx90a": "MI250X",
    "gfx910": "MI250X",
    "gfx942": "MI300X",
    "gfx950": "MI355X",
    "sm_70": "V100-SXM2-32GB",
    "sm_80": "A100-SXM4-80GB",
    "sm_90": "H100-SXM5-80GB",
    "sm_100": "B200",
}
"""The model whose links an architecture is known for, where a tool names no other."""


@lru_cache(maxsize=1024)
def gpu_specs(name: str, vendor: str = "", link: str = "") -> GpuSpecs:
    """``link`` may name the GPUs' links as tools do (NVSwitch-NV18), which helps with unknown cards."""
    model, text = _model(name), f"{name} {link}"
    vendor = vendor.lower() or ("amd" if re.search(r"MI\d{2,3}|Radeon|Instinct", name) else "nvidia")
    generation, memory = next(((g, m) for rule, g, m in _FAMILIES if re.search(rule, name, re.IGNORECASE)), (0, 0))
    pcie = 16.0 if _PCIE3.search(name) else 64.0 if _PCIE5.search(name) else 32.0
    if model is None:
        count = re.search(r"NV(\d{1,2})\b", text)
        gbps = NVLINK_GBPS[generation] * int(count[1]) if count and generation else _board_gbps(name, generation)
        recognized = bool(generation) or bool(re.search(r"RTX|MI\d\d\d", name))
        return GpuSpecs(name, vendor, gbps, pcie, float(memory), 0, generation, recognized)
    return GpuSpecs(
        model.name,
        model.vendor.value,
        model.link_gbps,
        model.pcie_gbps,
        model.memory_gbps,
        model.compute_units,
        generation if model.link_gbps and vendor != "amd" else 0,
    )


def _board_gbps(name: str, generation: int) -> float:
    """Of all links of a GPU on a board with link switches, which A40 and its like are not sold on."""
    return 0.0 if re.search(r"PCIE|A30|A40|A6000|3090", name, re.IGNORECASE) else _BOARD_GBPS.get(generation, 0.0)


def nvlink_gbps(specs: GpuSpecs) -> float:
    """GB/s per direction of one link; those of A40, RTX A6000 and their like are slower than of their generation."""
    each = NVLINK_GBPS.get(specs.generation, 25.0)
    return min(each, specs.link_gbps / _LINKS_OF_CARDS) if specs.link_gbps else each


def xgmi_gbps(name: str) -> float:
    """Of one link between two GPUs; 0 where the name is not known."""
    return next((gbps for key, gbps in XGMI_GBPS.items() if key in name.upper()), 0.0)


def _model(name: str) -> GpuModel | None:
    for tried in (_ARCHITECTURES.get(name, name), re.sub(r"^RTX ?", "RTX-", name), name.split("/")[0]):
        try:
            return find_gpu(tried)
        except UnknownGpuError:
            continue
    key = _letters(name)
    near = [
        gpu_model
        for gpu_model in gpu_catalogue().values()
        if any(_letters(a) == key for a in (gpu_model.name, *gpu_model.aliases))
    ]
    if not near and len(key) >= 4:
        near = [gpu_model for gpu_model in gpu_catalogue().values() if _family(gpu_model, key)]
    return near[-1] if near else None


def _family(model: GpuModel, key: str) -> bool:
    """``H100-80GB-HBM3`` and ``A100-SXM`` are of a model that the catalogue names in full."""
    return any(_letters(a).startswith(key) or _letters(a).endswith(key) for a in (model.name, *model.aliases))


def _letters(name: str) -> str:
    return re.sub(r"nvidia|geforce|instinct|amd|tesla|[^a-z0-9]", "", name.lower())
