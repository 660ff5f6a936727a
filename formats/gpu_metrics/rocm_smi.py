"""``rocm-smi --showuse --showmemuse --showmeminfo vram --showproductname [--showdriverversion --showpids] --json``.

Source: rocm_smi_lib's ``python_smi_tools/rocm_smi.py``. Keys have changed over its versions; each known spelling is
understood.
"""

import re
from collections.abc import Mapping
from typing import Any

from kopt.core.units import Bytes
from kopt.formats.gpu_metrics.documents import decode, memory, percentage
from kopt.formats.gpu_metrics.samples import GpuSample, MetricsError, ProcessSample

ARGUMENTS = (
    "--showuse",
    "--showmemuse",
    "--showmeminfo",
    "vram",
    "--showproductname",
    "--showdriverversion",
    "--showpids",
    "--json",
)
_CARD = re.compile(r"card(\d{1,3})")
_PID = re.compile(r"PID(\d{1,10})")


def parse(text: str) -> tuple[tuple[GpuSample, ...], tuple[ProcessSample, ...]]:
    """GPUs by number, and the processes that use them. Raises MetricsError.

    The tool tells a process's memory as one sum over its GPUs: ``gpu`` is empty there unless there is only one GPU.
    """
    document, line = decode(text)
    if not isinstance(document, dict):
        raise MetricsError("an object of cards is expected", line)
    cards = sorted((int(match[1]), card) for key, card in document.items() if (match := _CARD.fullmatch(key)))
    if not cards:
        raise MetricsError("no card in it; did rocm-smi find a GPU?", line)
    only = str(cards[0][0]) if len(cards) == 1 else ""
    system = document.get("system")
    driver = _first(system, "Driver version", "Driver Version") if isinstance(system, dict) else None
    gpus = tuple([_gpu(number, card, driver if isinstance(driver, str) else "") for number, card in cards])
    return gpus, tuple(_processes(system, only))


def _gpu(index: int, card: Any, driver: str) -> GpuSample:
    if not isinstance(card, dict):
        raise MetricsError(f"card{index} is no object")
    used = memory(_first(card, "VRAM Total Used Memory (B)", "VRAM Used Memory (B)"), f"card{index}: VRAM used", "B")
    total = memory(_first(card, "VRAM Total Memory (B)"), f"card{index}: VRAM", "B")
    if used is None or total is None:
        raise MetricsError(f"card{index} does not say how much VRAM is used; add --showmeminfo vram")
    if used > total:
        raise MetricsError(f"card{index}: {used} of {total} bytes are used")
    name = _first(card, "Card Series", "Card series", "Card Model", "Card model")
    return GpuSample(
        str(index),
        name if isinstance(name, str) else "",
        used,
        total,
        activity=percentage(_first(card, "GPU use (%)"), f"card{index}: use"),
        bandwidth=percentage(
            _first(card, "GPU Memory Read/Write Activity (%)", "Memory Activity"), f"card{index}: memory activity"
        ),
        driver=driver,
    )


def _processes(system: Any, only: str) -> list[ProcessSample]:
    processes = []
    for key, value in (system if isinstance(system, dict) else {}).items():
        match = _PID.fullmatch(key)
        if match is None:
            continue
        # Name, number of GPUs, VRAM, SDMA, CUs occupied; names may hold commas.
        parts = str(value).rsplit(",", 4)
        vram = parts[2].strip() if len(parts) == 5 else ""
        if not vram.isdigit() and vram.upper() != "UNKNOWN":
            raise MetricsError(f"{key} is {str(value)[:60]!r}, not name, GPUs, VRAM, SDMA, CUs")
        processes.append(
            ProcessSample(int(match[1]), only, Bytes(int(vram)) if vram.isdigit() else None, parts[0].strip())
        )
    return processes


def _first(card: Mapping[str, Any], *keys: str) -> Any:
    return next((card[key] for key in keys if key in card), None)
