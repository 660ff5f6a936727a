"""The fields of a GPU that the telemetry agent exports: names, units, and what vendors' tools and exporters call them.

This table is the only list: the agent's HELP and TYPE lines, the mapping from NVIDIA's dcgm-exporter and AMD's
device-metrics-exporter, and ``docs/telemetry.md`` are made of it. The order is that of importance: where a node has
more series than it may, the last fields go first.

Sources: dcgm-exporter, ``etc/default-counters.csv`` and ``etc/dcp-metrics-included.csv``; AMD device-metrics-exporter,
``docs/configuration/metricslist.md`` (energy in microjoules, xGMI counters in KB); NVML, ``nvml.h``.
"""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kopt_gpu_"
LABELS = ("node", "gpu", "uuid", "model", "partition", "profile", "namespace", "pod")
"""Of every series of a GPU. ``partition`` is the MIG instance or AMD partition, ``profile`` its size or mode; both are
empty for a whole GPU. ``namespace`` and ``pod`` are empty where no pod, or more than one, has the device."""
HOLDER_LABELS = (*LABELS, "resource", "claim")


class FieldKind(StrEnum):
    """As Prometheus types them."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True)
class Exported:
    """Series of another exporter: the sum of ``names``, times ``factor``. ``growth``: they count up, and the field is
    their growth per second."""

    names: tuple[str, ...]
    factor: float = 1.0
    growth: bool = False


@dataclass(frozen=True)
class GpuField:
    """``name`` goes behind ``kopt_gpu_``, with Prometheus's base unit at its end; ``label`` tells its series apart.

    ``nvml`` and ``amd_smi`` say what is asked there; ``exported`` are alternatives, the best first.
    """

    name: str
    kind: FieldKind
    description: str
    nvml: str = ""
    amd_smi: str = ""
    exported: tuple[Exported, ...] = ()
    label: str = ""
    most: float = 2.0**63
    """Larger values are a tool's mistake and are left out, as negative ones are."""

    @property
    def metric(self) -> str:
        """The name of its series, as Prometheus shows it."""
        return PREFIX + self.name


_GAUGE, _COUNTER = FieldKind.GAUGE, FieldKind.COUNTER
_WHOLE = 1.0 + 1e-9

FIELDS: tuple[GpuField, ...] = (
    GpuField(
        "memory_used_bytes",
        _GAUGE,
        "Memory in use.",
        "nvmlDeviceGetMemoryInfo: used",
        "mem_usage.used_vram",
        (Exported(("DCGM_FI_DEV_FB_USED",), 1 << 20), Exported(("gpu_used_vram",))),
        most=2.0**50,
    ),
    GpuField(
        "memory_total_bytes",
        _GAUGE,
        "Memory of the device.",
        "nvmlDeviceGetMemoryInfo: total",
        "mem_usage.total_vram",
        (
            Exported(("DCGM_FI_DEV_FB_TOTAL",), 1 << 20),
            Exported(("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_RESERVED"), 1 << 20),
            Exported(("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"), 1 << 20),
            Exported(("gpu_total_vram",)),
        ),
        most=2.0**50,
    ),
    GpuField(
        "busy_ratio",
        _GAUGE,
        "Share of the time in which kernels ran.",
        "GPM graphics utilisation; before Hopper nvmlDeviceGetUtilizationRates: gpu",
        "usage.gfx_activity",
        (
            Exported(("DCGM_FI_PROF_GR_ENGINE_ACTIVE",)),
            Exported(("DCGM_FI_DEV_GPU_UTIL",), 0.01),
            Exported(("gpu_gfx_activity",), 0.01),
        ),
        most=_WHOLE,
    ),
    GpuField(
        "sm_active_ratio",
        _GAUGE,
        "Share of SMs or compute units that were busy, on average over time.",
        "GPM SM utilisation (Hopper and newer)",
        "",
        (Exported(("DCGM_FI_PROF_SM_ACTIVE",)), Exported(("gpu_prof_sm_active",), 0.01)),
        most=_WHOLE,
    ),
    GpuField(
        "tensor_active_ratio",
        _GAUGE,
        "Share of the time in which tensor or matrix cores worked.",
        "GPM any tensor utilisation (Hopper and newer)",
        "",
        (Exported(("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",)), Exported(("gpu_prof_tensor_active_percent",), 0.01)),
        most=_WHOLE,
    ),
    GpuField(
        "dram_active_ratio",
        _GAUGE,
        "Share of the memory's bandwidth in use; before Hopper and on AMD of the time in which memory was accessed.",
        "GPM DRAM utilisation; before Hopper nvmlDeviceGetUtilizationRates: memory",
        "usage.umc_activity",
        (
            Exported(("DCGM_FI_PROF_DRAM_ACTIVE",)),
            Exported(("DCGM_FI_DEV_MEM_COPY_UTIL",), 0.01),
            Exported(("gpu_umc_activity",), 0.01),
        ),
        most=_WHOLE,
    ),
    GpuField(
        "power_watts",
        _GAUGE,
        "Draw of the board or package.",
        "nvmlDeviceGetPowerUsage",
        "power.socket_power",
        (
            Exported(("DCGM_FI_DEV_POWER_USAGE",)),
            Exported(("gpu_power_usage",)),
            Exported(("gpu_package_power",)),
            Exported(("gpu_average_package_power",)),
        ),
        most=100_000.0,
    ),
    GpuField(
        "energy_joules_total",
        _COUNTER,
        "Energy since the driver was loaded.",
        "nvmlDeviceGetTotalEnergyConsumption",
        "energy.total_energy_consumption",
        (Exported(("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",), 1e-3), Exported(("gpu_energy_consumed",), 1e-6)),
    ),
    GpuField(
        "temperature_celsius",
        _GAUGE,
        "Of the die; on AMD its hottest point.",
        "nvmlDeviceGetTemperature",
        "temperature.hotspot, else temperature.edge",
        (
            Exported(("DCGM_FI_DEV_GPU_TEMP",)),
            Exported(("gpu_junction_temperature",)),
            Exported(("gpu_edge_temperature",)),
        ),
        most=300.0,
    ),
    GpuField(
        "memory_temperature_celsius",
        _GAUGE,
        "Of the memory.",
        "field NVML_FI_DEV_MEMORY_TEMP",
        "temperature.mem",
        (Exported(("DCGM_FI_DEV_MEMORY_TEMP",)), Exported(("gpu_memory_temperature",))),
        most=300.0,
    ),
    GpuField(
        "throttled",
        _GAUGE,
        "1 while the clock is lowered for that reason: power, thermal, power-brake, sync-boost or hardware.",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "throttle (ROCm 6.4 and newer): the status of each violation",
        label="reason",
        most=1.0,
    ),
    GpuField(
        "xid_errors_total",
        _COUNTER,
        "XID errors by code, since boot from the kernel log, else since the agent began to look.",
        "event nvmlEventTypeXidCriticalError",
        label="xid",
    ),
    GpuField(
        "recent_xid_errors",
        _GAUGE,
        "1 for each code that the GPU had an XID error with within the window of the agent, an hour.",
        "event nvmlEventTypeXidCriticalError",
        label="xid",
        most=1.0,
    ),
    GpuField(
        "last_xid",
        _GAUGE,
        "The code of the last XID error; 0 for none.",
        "event nvmlEventTypeXidCriticalError",
        exported=(Exported(("DCGM_FI_DEV_XID_ERRORS",)),),
        most=100_000.0,
    ),
    GpuField(
        "ecc_uncorrectable_errors_total",
        _COUNTER,
        "Uncorrectable memory errors (ECC, RAS) since the driver was loaded.",
        "nvmlDeviceGetTotalEccErrors: uncorrected, volatile",
        "ecc.total_uncorrectable_count",
        (Exported(("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",)), Exported(("gpu_ecc_uncorrect_total",))),
    ),
    GpuField(
        "ecc_correctable_errors_total",
        _COUNTER,
        "Correctable memory errors (ECC, RAS) since the driver was loaded.",
        "nvmlDeviceGetTotalEccErrors: corrected, volatile",
        "ecc.total_correctable_count",
        (Exported(("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",)), Exported(("gpu_ecc_correct_total",))),
    ),
    GpuField(
        "row_remap_failed",
        _GAUGE,
        "1 where a row of memory could not be remapped: the GPU has to be replaced.",
        "nvmlDeviceGetRemappedRows: failure occurred",
        exported=(Exported(("DCGM_FI_DEV_ROW_REMAP_FAILURE",)),),
        most=1.0,
    ),
    GpuField(
        "link_bytes_per_second",
        _GAUGE,
        "Over NVLink or xGMI, both ways, all links together.",
        "GPM NVLink total; before Hopper the growth of NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX",
        "xgmi_link: the growth of read and write",
        (
            Exported(("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES")),
            Exported(("gpu_xgmi_link_tx", "gpu_xgmi_link_rx"), 1000.0, growth=True),
        ),
        most=1e15,
    ),
    GpuField(
        "pcie_bytes_per_second",
        _GAUGE,
        "Over PCIe, both ways.",
        "GPM PCIe; before Hopper nvmlDeviceGetPcieThroughput",
        "pcie.current_bandwidth",
        (
            Exported(("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES")),
            Exported(("pcie_bidirectional_bandwidth",), 1e6),
        ),
        most=1e13,
    ),
    GpuField(
        "pcie_replays_total",
        _COUNTER,
        "Packets that were sent again over PCIe.",
        "nvmlDeviceGetPcieReplayCounter",
        "pcie.replay_count",
        (Exported(("DCGM_FI_DEV_PCIE_REPLAY_COUNTER",)), Exported(("pcie_replay_count",))),
    ),
)

BY_NAME = {field.name: field for field in FIELDS}

UP = PREFIX + "up"
UP_DESCRIPTION = (
    "1 while the GPU answers; 0 once one that was seen before does not. Its other series are absent then, but for "
    "errors in the kernel log. Absent while nothing can be read of any."
)
FAULTS = (UP, PREFIX + "recent_xid_errors")
"""Names of the series that are few, and that alerts which somebody waits for go by: they may be scraped more often."""
HELD = PREFIX + "held"
HELD_DESCRIPTION = "1 for each device that a pod has, of a device plugin or of a claim, alone or beside others."
SHARE = PREFIX + "pod_share_ratio"
SHARE_DESCRIPTION = (
    "The part of the device that the pod was given: replicas of it among all that the device plugin offers. Absent "
    "where nothing says so."
)
