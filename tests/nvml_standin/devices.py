"""A node's GPUs behind the stand-in for libnvidia-ml.so.1 (library.c), as tests set and see them."""

import ctypes
import functools
import mmap
import os
import subprocess
import tempfile
from pathlib import Path

_GPUS, _INSTANCES, _PARTS, _CODES = 8, 8, 8, 64
NAMES = {19: "1g.10gb", 14: "2g.20gb", 9: "3g.40gb", 5: "4g.40gb", 0: "7g.80gb", 15: "1g.20gb"}
H100 = "NVIDIA H100 80GB HBM3"


class _Instance(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("used", "profile", "start", "id")] + [
        ("parts", ctypes.c_int32 * _PARTS)
    ]


class _Gpu(ctypes.Structure):
    _fields_ = [
        ("uuid", ctypes.c_char * 80),
        ("name", ctypes.c_char * 96),
        *((name, ctypes.c_int32) for name in ("mode", "pending", "needs_reset", "process", "process_instance")),
        ("instances", _Instance * _INSTANCES),
    ]


class _Activity(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("used", "energy_mj", "link_kib")),
        ("instance_used", ctypes.c_int64 * _INSTANCES),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("lost", "hangs", "busy", "moving", "power_mw", "celsius", "reasons", "gpm", "sm", "tensor", "dram"),
                *("corrected", "uncorrected", "replays", "remap_failed", "pcie_kib", "xids"),
            )
        ),
        ("codes", ctypes.c_int32 * _CODES),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("count", "calls", "fail_at", "fail_with", "lie_at", "kill_before", "kill_after")
        ),
        ("gpus", _Gpu * _GPUS),
        ("activity", _Activity * _GPUS),
    ]


class Devices:
    """The file of one node; every field may be set while processes use it."""

    def __init__(self, path: Path, gpus: int = 2, model: str = H100) -> None:
        self.path = path
        path.write_bytes(bytes(ctypes.sizeof(_State)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.state = _State.from_buffer(self._map)
        self.state.count = gpus
        for at in range(gpus):
            self.state.gpus[at].uuid = f"GPU-{at:08x}-0000-0000-0000-000000000000".encode()
            self.state.gpus[at].name = model.encode()

    @property
    def environment(self) -> dict[str, str]:
        """Of a process whose NVML this is."""
        return {"NVML_STANDIN_STATE": str(self.path), "LD_LIBRARY_PATH": str(library().parent)}

    def uuid(self, at: int) -> str:
        return self.state.gpus[at].uuid.decode()

    def cut(self, at: int, *profiles: tuple[str, int]) -> None:
        """MIG instances by profile and start, each with one compute instance, as an administrator makes them."""
        gpu, ids = self.state.gpus[at], {name: number for number, name in NAMES.items()}
        gpu.mode = gpu.pending = 1
        for number, instance in enumerate(gpu.instances):
            instance.used = number < len(profiles)
            if instance.used:
                instance.profile, instance.start, instance.id = (
                    ids[profiles[number][0]],
                    profiles[number][1],
                    number + 1,
                )
                instance.parts[0] = 1

    def xid(self, at: int, *codes: int) -> None:
        """Errors that the driver has not told yet, the last first."""
        activity = self.state.activity[at]
        for code in codes:
            activity.codes[activity.xids % _CODES] = code
            activity.xids += 1

    def layout(self, at: int) -> list[tuple[str, int, bool]]:
        """Profile, start and whether compute instances are there, sorted."""
        gpu = self.state.gpus[at]
        return sorted((NAMES[each.profile], each.start, any(each.parts)) for each in gpu.instances if each.used)

    def content(self) -> bytes:
        """Everything that is on the GPUs, without counters."""
        return bytes(self._map[_State.gpus.offset :])

    def reset_faults(self) -> None:
        for name in ("calls", "fail_at", "fail_with", "lie_at", "kill_before", "kill_after"):
            setattr(self.state, name, 0)


@functools.cache
def library() -> Path:
    """Compiled on first use by this process."""
    folder = Path(tempfile.mkdtemp(prefix="kopt-nvml-"))
    target = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("library.c")
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", str(target), str(source)], check=True)
    return target


def load() -> object:
    """``pynvml`` of this process over the stand-in; NVML_STANDIN_STATE of ``os.environ`` says of which node."""
    import pynvml

    assert "NVML_STANDIN_STATE" in os.environ
    pynvml.nvmlLib = ctypes.CDLL(str(library()))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlInit()
    return pynvml
