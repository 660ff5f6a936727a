"""A node's GPUs behind the stand-in for libnvidia-ml.so.1 (library.c), as tests set and see them."""

import ctypes
import functools
import mmap
import os
import subprocess
import tempfile
from pathlib import Path

_GPUS, _INSTANCES, _PARTS = 8, 8, 8
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


class _State(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("count", "calls", "fail_at", "fail_with", "lie_at", "kill_before", "kill_after")
        ),
        ("gpus", _Gpu * _GPUS),
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
