"""The collectors of GPU metrics: a new one is its own module and a line here.

They are tried in this order: libraries are quicker than tools.
"""

from kopt.agents.profiler.collectors import amd_smi, amdsmi, nvidia_smi, nvml, rocm_smi
from kopt.agents.profiler.readings import Collector

COLLECTORS: tuple[Collector, ...] = (
    nvml.COLLECTOR,
    nvidia_smi.COLLECTOR,
    amdsmi.COLLECTOR,
    amd_smi.COLLECTOR,
    rocm_smi.COLLECTOR,
)
