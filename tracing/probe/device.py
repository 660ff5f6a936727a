"""Loads ``fake_device.cpp`` under torch: compiled on first use, kept by torch, Python and source."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_STANDARDS = ("c++17", "c++20")
_COMPILE_SECONDS = 120


class NoFakeDevice(Exception):
    """The fake device cannot be had here; the message says what to do."""


@dataclass(frozen=True)
class TorchBuild:
    """Where torch lies and what it was built for, read without importing it."""

    folder: Path
    version: str
    hip: bool
    git: str


def find_torch() -> TorchBuild:
    """The torch of this interpreter. Raises :class:`NoFakeDevice` where there is none."""
    result = importlib.util.find_spec("torch")
    if result is None or not result.submodule_search_locations:
        raise NoFakeDevice(f"{sys.executable} has no torch: name the script's own interpreter with --python")
    folder = Path(next(iter(result.submodule_search_locations)))
    text = (folder / "version.py").read_text()
    version = re.search(r"__version__ = '([^']+)'", text)
    git = re.search(r"git_version = '([^']+)'", text)
    hip = re.search(r"^hip[^=]*= '", text, re.MULTILINE)
    return TorchBuild(folder, version[1] if version else "unknown", hip is not None, git[1] if git else "")


def load(build: TorchBuild, cache: Path) -> ctypes.CDLL:
    """Loads torch's core and the fake hooks over it; to be called before ``import torch``."""
    return ctypes.CDLL(str(library(build, cache)), mode=ctypes.RTLD_GLOBAL)


def library(build: TorchBuild, cache: Path) -> Path:
    """The fake hooks for this torch: those in ``cache``, else compiled there or, where that cannot be written, in the
    temporary folder. Loads torch's core."""
    if sys.platform != "linux":
        raise NoFakeDevice(f"scripts are executed abstractly on Linux only, not on {sys.platform}")
    core = ctypes.CDLL(str(build.folder / "lib" / "libc10.so"), mode=ctypes.RTLD_GLOBAL)
    _preload(build)
    cpu = ctypes.CDLL(str(build.folder / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    if core is None:
        raise NoFakeDevice("torch's libraries are incomplete")
    new_abi = hasattr(cpu, "_ZN2at17CUDAHooksRegistryB5cxx11Ev")
    kept = cache / f"fake_device-{_key(build, new_abi)}.so"
    if not kept.exists():
        try:
            _compile(build, new_abi, kept)
        except OSError:
            kept = Path(tempfile.mkdtemp()) / kept.name
            _compile(build, new_abi, kept)
    return kept


def _preload(build: TorchBuild) -> None:
    """libtorch_cpu needs these; ``import torch`` finds them the same way."""
    for name in ("libgomp.so.1", "libtorch_global_deps.so"):
        for path in (build.folder / "lib").glob(name.replace(".so", "*.so")):
            try:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                _preload_vendor(build)
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _preload_vendor(build: TorchBuild) -> None:
    """CUDA's own libraries where they come as packages beside torch."""
    for _ in range(2):
        for path in sorted((build.folder.parent / "nvidia").glob("*/lib/*.so*")):
            try:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue


def _key(build: TorchBuild, new_abi: bool) -> str:
    source = (Path(__file__).parent / "fake_device.cpp").read_bytes()
    key = (build.version, build.git, str(build.hip), str(new_abi), sys.implementation.cache_tag, os.uname().machine)
    return hashlib.sha256("\0".join(key).encode() + source).hexdigest()[:20]


def _compile(build: TorchBuild, new_abi: bool, library: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        raise NoFakeDevice(
            "executing a script abstractly needs a C++ compiler once per torch version: install g++ (or set CXX)"
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    errors = ""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "fake_device.so"
        for standard in _STANDARDS:
            done = subprocess.run(
                _command(build, new_abi, compiler, standard, made),
                capture_output=True,
                text=True,
                timeout=_COMPILE_SECONDS,
                check=False,
            )
            if done.returncode == 0:
                # Two processes may compile at once: the last rename wins and both files are the same.
                made.replace(library)
                return
            errors = done.stderr
    raise NoFakeDevice(f"{compiler} cannot compile the fake device for torch {build.version}: {errors[-1500:]}")


def _command(build: TorchBuild, new_abi: bool, compiler: str, standard: str, output: Path) -> list[str]:
    include = build.folder / "include"
    options = [f"-std={standard}", "-O0", "-w", "-fPIC", "-shared", f"-D_GLIBCXX_USE_CXX11_ABI={int(new_abi)}"]
    if build.hip:
        options += ["-DUSE_ROCM=1", "-D__HIP_PLATFORM_AMD__=1"]
    source = str(Path(__file__).parent / "fake_device.cpp")
    return [compiler, *options, f"-I{include}", source, "-o", str(output)]
