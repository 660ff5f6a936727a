"""What exporters and amd-smi print in the situations that mislead, as their own documentation and issues show them."""

NODE = "gpu-7"


def dcgm(*, node: str = NODE) -> str:
    """GPU 0 is shared in time by two pods, GPU 1 cut by MIG, and GPU 0 has had an XID."""
    zero = f'gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}"'
    one = f'gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="{node}"'
    part = f'{one},GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    by_pod = [f'{zero},namespace="research",pod="{pod}",container="main"' for pod in ("a", "b")]
    lines = ["# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).", "# TYPE DCGM_FI_DEV_FB_USED gauge"]
    lines += [f"DCGM_FI_DEV_FB_USED{{{labels}}} 1000" for labels in by_pod]
    lines += [f"DCGM_FI_DEV_FB_USED{{{part}}} 200"]
    lines += ["# TYPE DCGM_FI_DEV_FB_FREE gauge", *(f"DCGM_FI_DEV_FB_FREE{{{labels}}} 80000" for labels in by_pod)]
    lines += ["# TYPE DCGM_FI_PROF_SM_ACTIVE gauge", *(f"DCGM_FI_PROF_SM_ACTIVE{{{labels}}} 0.5" for labels in by_pod)]
    lines += ["# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge", f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{part}}} 0.25"]
    lines += ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge", f"DCGM_FI_DEV_POWER_USAGE{{{zero}}} 300.5"]
    lines += ["# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter"]
    lines += [f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{zero}}} 5000"]
    lines += ["# TYPE DCGM_FI_DEV_XID_ERRORS gauge", f'DCGM_FI_DEV_XID_ERRORS{{{zero},err_code="31"}} 31']
    lines += ["# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge", f'DCGM_EXP_XID_ERRORS_COUNT{{{zero},xid="31"}} 4']
    lines += ["# TYPE DCGM_FI_DEV_CLOCKS_EVENT_REASONS gauge", f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{zero}}} 96"]
    lines += ["# TYPE DCGM_FI_DEV_GPU_TEMP gauge", f"DCGM_FI_DEV_GPU_TEMP{{{zero}}} NaN"]
    return "\n".join([*lines, ""])


def amd(*, partitions: int = 0, xgmi_kb: float = 0.0) -> str:
    """One MI300X, whole or in CPX, where each partition says the whole GPU's activity; memory in MiB."""
    lines = []
    for number in range(partitions or 1):
        kind = "cpx" if partitions else "spx"
        labels = (
            f'gpu_id="{number}",gpu_partition_id="{number}",gpu_compute_partition_type="{kind}",hostname="{NODE}",'
            f'card_series="AMD Instinct MI300X OAM",gpu_uuid="u{number}"'
        )
        used, total = (1024, 24_000) if partitions else (16_384, 196_592)
        lines += [f"gpu_used_vram{{{labels}}} {used}", f"gpu_total_vram{{{labels}}} {total}"]
        lines += [f"gpu_gfx_activity{{{labels}}} 80", f"amd_gpu_energy_consumed{{{labels}}} 7000000"]
        lines += [
            f'gpu_xgmi_link_{way}{{{labels},link_index="{link}"}} {xgmi_kb}' for way in ("tx", "rx") for link in "01"
        ]
        lines += [f"gpu_ecc_uncorrect_total{{{labels}}} 2", f"gpu_junction_temperature{{{labels}}} 70"]
    return "\n".join([*lines, ""])


def amd_smi_metric(*, cpx: bool) -> str:
    """``amd-smi metric --json``: the whole GPU, or three partitions of which the later two know little."""
    whole = """{"gpu": 0,
     "usage": {"gfx_activity": {"value": 80, "unit": "%"}, "umc_activity": {"value": 10, "unit": "%"}},
     "power": {"socket_power": {"value": 550, "unit": "W"}},
     "energy": {"total_energy_consumption": {"value": 9.5, "unit": "J"}},
     "temperature": {"edge": "N/A", "hotspot": {"value": 64, "unit": "C"}, "mem": {"value": 55, "unit": "C"}},
     "pcie": {"replay_count": 3, "current_bandwidth": {"value": 800, "unit": "Mb/s"}},
     "ecc": {"total_correctable_count": 5, "total_uncorrectable_count": 0},
     "throttle": {"ppt_violation_status": "ACTIVE", "socket_thermal_violation_status": "NOT ACTIVE",
       "prochot_violation_status": "N/A"},
     "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 2048, "unit": "MB"}}}"""
    part = """{"gpu": %d, "usage": "N/A", "power": {"socket_power": "N/A"}, "temperature": {"hotspot": "N/A"},
     "ecc": "N/A",
     "mem_usage": {"total_vram": {"value": 24574, "unit": "MB"}, "used_vram": {"value": 100, "unit": "MB"}}}"""
    return "[" + ", ".join([whole, part % 1, part % 2] if cpx else [whole]) + "]"


def amd_smi_list(count: int) -> str:
    """``amd-smi list --json``."""
    every = [
        f'{{"gpu": {n}, "bdf": "0000:C1:00.{n}", "uuid": "u{n}", "node_id": {n + 2}, "partition_id": {n}}}'
        for n in range(count)
    ]
    return "[" + ", ".join(every) + "]"


def amd_smi_static(count: int, mode: str) -> str:
    """``amd-smi static --asic --partition --json``."""
    every = [
        f'{{"gpu": {n}, "asic": {{"market_name": "AMD Instinct MI300X"}}, '
        f'"partition": {{"compute_partition": "{mode}", "memory_partition": "NPS1"}}}}'
        for n in range(count)
    ]
    return "[" + ", ".join(every) + "]"
