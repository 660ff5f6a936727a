"""Dense peaks of GPUs' compute by number format, from vendors' data sheets."""

from dataclasses import dataclass

from kopt.core.gpu import GpuModel

_PEAKS_TFLOPS: tuple[tuple[str, float, float, float, float], ...] = (
    ("V100", 15.7, 125, 0, 0),
    ("T4", 8.1, 65, 0, 0),
    ("L40S", 91.6, 362, 733, 0),
    ("L4", 30.3, 121, 242, 0),
    ("A100", 19.5, 312, 0, 0),
    ("A10", 31.2, 125, 0, 0),
    ("A30", 10.3, 165, 0, 0),
    ("A40", 37.4, 150, 0, 0),
    ("GH200", 67, 990, 1979, 0),
    ("H100-PCIE", 51, 756, 1513, 0),
    ("H100-NVL", 60, 835, 1671, 0),
    ("H100", 67, 990, 1979, 0),
    ("H200", 67, 990, 1979, 0),
    ("H20", 44, 148, 296, 0),
    ("GB300", 80, 2500, 5000, 15000),
    ("GB200", 80, 2500, 5000, 10000),
    ("B300", 77, 2250, 4500, 13500),
    ("B200", 80, 2250, 4500, 9000),
    ("RTX-3090", 35.6, 71, 0, 0),
    ("RTX-4090", 82.6, 165, 330, 0),
    ("RTX-5090", 104.8, 210, 419, 0),
    ("RTX-A6000", 38.7, 155, 0, 0),
    ("RTX-6000-Ada", 91.1, 364, 728, 0),
    ("MI100", 23.1, 184.6, 0, 0),
    ("MI210", 22.6, 181, 0, 0),
    ("MI250X", 47.9, 383, 0, 0),
    ("MI300A", 122.6, 980, 1961, 0),
    ("MI300X", 163.4, 1307, 2615, 0),
    ("MI325X", 163.4, 1307, 2615, 0),
    ("MI350X", 144.2, 2300, 4600, 9200),
    ("MI355X", 157.3, 2500, 5000, 10100),
    ("Radeon-PRO-W7900", 61.3, 122.6, 0, 0),
)
"""FP32 without matrix units, then half precision, eight and four bits with them, without sparsity; 0: not in hardware.
By the beginning of the name; the first that fits."""
_A100_UNITS = 108


@dataclass(frozen=True)
class PeakCompute:
    """FLOP/s; ``eight_bits`` and ``four_bits`` are those of the next wider format where the GPU has none."""

    single: float
    half: float
    eight_bits: float
    four_bits: float
    known: bool = True


def peak_compute(gpu: GpuModel) -> PeakCompute:
    """The peaks of a model; of one without a data sheet here as many per compute unit as an A100 has."""
    named = peak_of_name(gpu.name)
    if named is not None:
        return named
    single, half = (gpu.compute_units * each * 1e12 / _A100_UNITS for each in (19.5, 312))
    return PeakCompute(single, half, half, half, known=False)


def peak_of_name(name: str) -> PeakCompute | None:
    """The peaks of a model by its name, in the catalogue or not; None without a data sheet here."""
    for beginning, single, half, eight, four in _PEAKS_TFLOPS:
        if name.startswith(beginning):
            eight_bits = eight or half
            return PeakCompute(single * 1e12, half * 1e12, eight_bits * 1e12, (four or eight_bits) * 1e12)
    return None
