"""Runs one program and reports what it took of the GPU: ``measured_program.py --report FILE [options] PROGRAM ARGS``.

It stands before the program in the interpreter of the program's user, so it needs the standard library alone, imports
no torch before the program does, and changes nothing of what the program sees: arguments, import path, ``__main__``.
The report, one JSON object, is written when the program ends, however it ends.
"""

import argparse
import contextlib
import importlib.abc
import importlib.util
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

_step_times: list[float] = []


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once, when a module has been imported by whoever needs it."""

    def __init__(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        self.name, self.callback = name, callback

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def and_then(module: ModuleType) -> None:
            execute(module)
            self.callback(module)

        spec.loader.exec_module = and_then  # type: ignore[method-assign]
        return spec


def note_steps(optimizer: ModuleType) -> None:
    """Every step of every torch optimizer is noted with its time on the machine's clock; nothing waits for the GPU."""
    optimizer.register_optimizer_step_post_hook(lambda *_: _step_times.append(time.monotonic()))


def cap_memory(capacity_bytes: int) -> Callable[[ModuleType], None]:
    """The caching allocator refuses to reserve more, as a smaller card would; set as soon as CUDA starts."""

    def cap(cuda: ModuleType) -> None:
        def apply() -> None:
            total = cuda.get_device_properties(0).total_memory
            cuda.set_per_process_memory_fraction(min(1.0, capacity_bytes / total), 0)

        cuda._lazy_call(apply)

    return cap


def device_memory() -> dict[str, Any]:
    """The allocator's peaks, where the program used a GPU; else what torch there was."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return {}
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    if not torch.cuda.is_initialized():
        return found
    stats = torch.cuda.memory_stats(0)
    # A program may empty the peaks of its own statistics; these are of the device's allocator since it started.
    return found | {
        "device": torch.cuda.get_device_name(0),
        "capacity_bytes": torch.cuda.get_device_properties(0).total_memory,
        "allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "reserved_bytes": stats.get("reserved_bytes.all.peak", 0),
        "out_of_memory_events": stats.get("num_ooms", 0),
        "allocation_retries": stats.get("num_alloc_retries", 0),
        "cudnn": torch.backends.cudnn.version(),
    }


def run(program: list[str], as_module: bool) -> None:
    """As ``python PROGRAM`` or ``python -m PROGRAM`` would."""
    sys.argv[:] = program
    if as_module:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))  # noqa: PTH100, PTH120
        runpy.run_path(program[0], run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", required=True)
    parser.add_argument("--capacity-bytes", type=int)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    # The folder of this file stands first on the path; the program must not find its neighbours.
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # noqa: PTH100, PTH120
        sys.path.pop(0)
    sys.meta_path.insert(0, AfterImport("torch.optim.optimizer", note_steps))
    if options.capacity_bytes:
        sys.meta_path.insert(0, AfterImport("torch.cuda", cap_memory(options.capacity_bytes)))
    owner, error, out_of_memory = os.getpid(), "", False
    started = time.monotonic()
    try:
        run(options.program, options.module)
    except BaseException as problem:
        if not (isinstance(problem, SystemExit) and problem.code in (None, 0)):
            error = f"{type(problem).__name__}: {problem}"[:2000]
            out_of_memory = "OutOfMemoryError" in type(problem).__name__ or "out of memory" in str(problem)
        raise
    finally:
        # A worker that was forked inside the program ends here as well, and reports nothing.
        if os.getpid() == owner:
            report: dict[str, Any] = {"error": error, "out_of_memory": out_of_memory, "started": started}
            with contextlib.suppress(RuntimeError):
                report |= device_memory()
            report |= {"ended": time.monotonic(), "step_times": _step_times}
            with open(options.report, "w") as stream:  # noqa: PTH123
                json.dump(report, stream)


if __name__ == "__main__":
    main()
