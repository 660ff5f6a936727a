"""Follows the storages of fake tensors from their first sight to their end, in order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from . import stream as events
from .stream import EventWriter


class Record:
    """A storage that is alive. ``version`` counts losses of its known values."""

    __slots__ = ("bytes", "device", "number", "on_gpu", "reference", "role", "version")

    def __init__(self, number: int, size: int, device: int, on_gpu: bool) -> None:
        self.number = number
        self.bytes = size
        self.device = device
        self.on_gpu = on_gpu
        self.role = 0
        self.version = 0
        self.reference: Any = None


class LiveStorages:
    """Live storages by the address of their implementation; ``allocated`` and ``peak`` are bytes on the device,
    ``highest`` is the peak that the script asks for and resets."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self.allocated = 0
        self.peak = 0
        self.highest = 0
        self.allocations = 0
        self.module = 0
        self.operation = 0
        self.stream = 0
        self.parts: Callable[[Any], Iterable[Any]] = lambda tensor: (tensor,)
        self._live: dict[int, Record] = {}
        self._last_number = 0
        self._rank = 0

    def follow(self, tensor: torch.Tensor, device: torch.device) -> Record:
        """The record of a fake tensor's storage; the first sight of one on the GPU is an allocation."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        record = self._live.get(address)
        if record is None:
            record = self._live[address] = Record(0, 0, device.index or 0, device.type == "cuda")
            # A storage's Python object is kept as long as the storage itself, so both end together.
            record.reference = weakref.ref(storage, partial(self._ended, address))
            self._allocate(record, storage.nbytes())
        return record

    def resized(self, storage: Any) -> None:
        """A storage changed its size in place (FSDP frees and regains parameters so)."""
        record = self._live.get(storage._cdata)
        if record is not None and record.bytes != storage.nbytes():
            role = record.role
            self._free(record)
            self._allocate(record, storage.nbytes())
            self.assign(record, role)

    def assign(self, record: Record | None, role: int) -> None:
        """Says what a storage is for; only changes are written."""
        if record is not None and role and record.role != role:
            record.role = role
            if record.number:
                self.writer.row(events.ROLE, record.number, role)

    def role(self, tensors: Iterable[Any], role: int) -> None:
        """Says what the storages of these tensors are for, where they are ours."""
        for tensor in tensors:
            # A sparse gradient is its indices and values.
            for part in (tensor,) if getattr(tensor, "layout", None) is torch.strided else self.parts(tensor):
                record = self.find(part)
                if record is not None:
                    self.assign(record, role)

    def find(self, tensor: Any) -> Record | None:
        """The record of a tensor's storage, if it is followed."""
        local = getattr(tensor, "_local_tensor", tensor)
        if not isinstance(local, torch.Tensor):
            return None
        try:
            return self._live.get(local.untyped_storage()._cdata)
        except (RuntimeError, NotImplementedError):
            # Sparse and wrapper tensors have none of their own.
            return None

    def unassigned(self) -> list[Record]:
        """Storages on the GPU that have no role yet."""
        return [record for record in list(self._live.values()) if record.on_gpu and not record.role]

    def reset_peak(self) -> None:
        """From now on ``peak`` is that of what follows."""
        self.peak = self.allocated

    def _allocate(self, record: Record, size: int) -> None:
        record.bytes = size
        record.role = 0
        if not (record.on_gpu and size):
            record.number = 0
            return
        self._last_number += 1
        record.number = self._last_number
        self._switch(record.device)
        self.writer.row(events.ALLOC, record.number, size, self.stream, self.module, self.operation)
        self.allocations += 1
        self.allocated += size
        if self.allocated > self.peak:
            self.peak = self.allocated
            self.highest = max(self.highest, self.peak)

    def _switch(self, device: int) -> None:
        """A rank is a GPU: one process of many has its own, one process alone may use them all."""
        if device != self._rank:
            self._rank = device
            self.writer.row(events.RANK, device)

    def _free(self, record: Record) -> None:
        if record.number:
            self._switch(record.device)
            self.writer.freed(record.number)
            self.allocated -= record.bytes
            record.number = 0

    def _ended(self, address: int, _: Any) -> None:
        record = self._live.pop(address, None)
        if record is not None:
            self._free(record)
