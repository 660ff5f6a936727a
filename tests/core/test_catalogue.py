"""The GPU catalogue is consistent in itself, and its names are those that machines report."""

import pytest

from kopt.core.gpu import GpuModel, Vendor
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu, gpu_catalogue
from kopt.core.units import GIB

MODELS = list(gpu_catalogue().values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
class TestEveryModel:
    def test_memory(self, model: GpuModel) -> None:
        # Nothing takes more than a tenth of a GPU's memory away from processes.
        assert 0.9 * model.memory_bytes < model.usable_bytes <= model.memory_bytes
        assert model.memory_bytes % GIB == 0

    def test_partitions_fit(self, model: GpuModel) -> None:
        for part in model.partitions:
            assert 1 <= part.count <= 8
            assert part.memory_bytes * part.count <= model.usable_bytes, part
            assert part.compute_units * part.count <= model.compute_units, part

    def test_mig_names_tell_the_memory(self, model: GpuModel) -> None:
        for part in model.partitions:
            if part.name.endswith("gb"):
                named = int(part.name.partition(".")[2].removesuffix("gb"))
                assert 0.85 * named < part.memory_bytes / GIB <= named

    def test_links(self, model: GpuModel) -> None:
        assert bool(model.link) == (model.link_gbps > 0)
        assert model.memory_gbps > 2 * model.link_gbps
        assert model.pcie_gbps in (16, 32, 64)

    def test_source(self, model: GpuModel) -> None:
        assert model.source.startswith("https://")


def test_no_name_means_two_models() -> None:
    names = [alias.lower() for model in MODELS for alias in (model.name, *model.aliases)]
    assert len(names) == len(set(names))
    for model in MODELS:
        for alias in (model.name, *model.aliases):
            assert find_gpu(alias) is model


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM5-80GB"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-SXM5-80GB"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100-SXM4-40GB"),
        ("Tesla-V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla-T4", "T4"),
        ("NVIDIA-A10", "A10"),
        ("nvidia h200", "H200-SXM5-141GB"),
        ("GeForce RTX 4090", "RTX-4090"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("amd instinct mi355x", "MI355X"),
        ("10DE:2330", "H100-SXM5-80GB"),
        ("1002:74a1", "MI300X"),
    ],
)
def test_names_as_machines_report_them(reported: str, name: str) -> None:
    assert find_gpu(reported).name == name


@pytest.mark.parametrize(
    ("wrong", "near"), [("H1000", "H100"), ("MI300", "MI300X"), ("", "MI300X"), ("x" * 10_000, "H100")]
)
def test_an_unknown_name_gives_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownGpuError, match=near) as caught:
        find_gpu(wrong)
    assert len(str(caught.value)) < 1500


def test_facts_of_the_data_sheets() -> None:
    mi300x, h100 = find_gpu("MI300X"), find_gpu("H100")
    assert (mi300x.vendor, mi300x.memory_bytes, mi300x.compute_units) == (Vendor.AMD, 192 * GIB, 304)
    # 206,141,652,992 bytes is what rocm-smi reports.
    assert mi300x.usable_bytes <= 206_141_652_992
    assert (h100.memory_bytes, h100.compute_units, h100.link_gbps) == (80 * GIB, 132, 450)
    assert [part.count for part in h100.partitions] == [7, 4, 3, 2, 1, 1]
    # 81,559 MiB is what nvidia-smi reports.
    assert h100.usable_bytes <= 81_559 << 20


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        gpu_catalogue()["x"] = MODELS[0]  # type: ignore[index]
