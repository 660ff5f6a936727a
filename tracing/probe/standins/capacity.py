"""The end of the device's memory, for scripts that look for it.

A script that does not fit goes on here beyond what the device has, so that its need is known. One that catches the
error to try a smaller batch would try larger and larger ones: a warning says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .guarded import expected

if TYPE_CHECKING:
    from ..session import Session

# What a process has on a device before its first tensor.
_CONTEXT_BYTES = 500 << 20
# The names of the error, and those by which accelerate and Lightning ask about it.
_NAMES = {"OutOfMemoryError", "should_reduce_batch_size", "is_oom_error", "is_out_of_memory_error"}
_TEXT = "out of memory"
_GIB, _MIB = 1 << 30, 1 << 20


def install(session: Session) -> None:
    """Lets an allocation beyond the device's memory fail where a caller would catch that."""
    storages: Any = session.storages
    original = storages._allocate
    total = session.settings.gpu.memory_bytes
    most = total - _CONTEXT_BYTES

    def allocate(record: Any, size: int) -> None:
        if record.on_gpu and storages.allocated + size > most * (record.device + 1) and _expected():
            session.writer.warning(
                f"the script caught that the {total / _GIB:.0f} GiB of the GPU were full and went on with less: it "
                "takes what it gets, so it needs the whole of a GPU, and on another GPU another size"
            )
            free = max(0, most - storages.allocated)
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / _MIB:.2f} MiB. GPU {record.device} has a total "
                f"capacity of {total / _GIB:.2f} GiB of which {free / _MIB:.2f} MiB is free."
            )
        original(record, size)

    storages._allocate = allocate


def _expected() -> bool:
    return expected(_NAMES, _TEXT, by_libraries=True)
