"""Phases and steps of a training loop, and when enough of it was seen."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

import torch

from . import stream as events
from .settings import Settings
from .storages import LiveStorages
from .stream import EventWriter
from .tracer import Tracer

_SAME_SHARE = 0.005
_SAME_STEPS = 2
_FORWARDS = 6
_ROLLED_OUT = 5000


class _Calls:
    """Calls of one root module without gradients: ``peak`` since the last one; how many in a row were ``alike``.

    Alike is what was seen before in the same order, so that a second text of the same length counts as the first.
    """

    __slots__ = ("_position", "_positions", "_shapes", "alike", "module", "peak")

    def __init__(self, module: Any, peak: int) -> None:
        self.module = module
        self.peak = peak
        self.alike = 0
        self._position = -1
        self._shapes: list[tuple[int, int]] = []
        self._positions: dict[tuple[int, int], int] = {}

    def add(self, shape: tuple[int, int]) -> None:
        """One call more."""
        expected = self._position + 1
        follows = self.alike and expected < len(self._shapes) and self._shapes[expected] == shape
        self._position = expected if follows else self._positions.get(shape, -1)
        self.alike = self.alike + 1 if follows else int(self._position >= 0)
        self._positions.setdefault(shape, len(self._shapes))
        self._shapes.append(shape)


class Steps:
    """Follows phases; once the optimizer's steps look alike it lets the loop end and stops at the next step.

    A loop that is let go runs its evaluation (a few batches: data loaders end early), whose peak counts as well.
    """

    def __init__(self, writer: EventWriter, storages: LiveStorages, tracer: Tracer, settings: Settings) -> None:
        self.index = 0
        self.draining = False
        self.skims = False
        self.trains = False
        self.remaining_batches = 2
        self._writer = writer
        self._storages = storages
        self._tracer = tracer
        self._settings = settings
        self._phase = ""
        self._last: tuple[int, int] | None = None
        self._alike = 0
        self._main: Any = None
        self._backwards = 0
        self._calls: dict[int, _Calls] = {}
        self._budget = 0
        self._operations_before = 0
        self._parameters_sent = False

    def phase(self, name: str) -> None:
        """Writes a phase that differs from the last."""
        if name != self._phase:
            self._phase = name
            self._writer.row(events.PHASE, self._writer.name(name), self.index)

    def forward_begins(self, module: Any, inputs: Any) -> None:
        """A root module is called."""
        # Transforms of images are modules as well.
        if self._phase == "backward" or next(module.parameters(), None) is None:
            return
        if any(torch.nn.parameter.is_lazy(item) for item in (*module.parameters(), *module.buffers())):
            # Their shapes come from this very call.
            self.phase("forward")
            return
        if not self._parameters_sent:
            self._parameters_sent = True
            self.describe(module)
        training = torch.is_grad_enabled()
        self.phase("forward" if training else "eval")
        self._storages.role(module.parameters(), events.WEIGHTS)
        self._storages.role(module.buffers(), events.BUFFERS)
        self._storages.role(inputs, events.INPUTS)
        if self.draining and self._tracer.count > self._budget:
            self.stop("steady")
        if not self._backwards and self._phase == "eval":
            self._round(module)

    def _round(self, module: Any) -> None:
        """A script without a backward pass is steady once what lies between two calls of one module looks alike.

        The modules of a model that its script calls one by one are roots as well: alike are the rounds of each.
        """
        peak, own = self._storages.peak, self._calls.get(id(module))
        self._storages.reset_peak()
        for calls in self._calls.values():
            calls.peak = max(calls.peak, peak)
        if own is None or own.module() is not module:
            self._calls[id(module)] = _Calls(weakref.ref(module), self._storages.allocated)
            return
        own.add((own.peak, self._storages.allocated))
        own.peak = self._storages.allocated
        if own.alike >= (_ROLLED_OUT if self.trains else _FORWARDS):
            self.stop("steady")
        # Validation ends with its data; agents play on until they learn.
        self.skims = self.trains and own.alike >= _FORWARDS

    def backward_begins(self) -> None:
        """What is alive now and has no role was kept for this pass."""
        self._backwards += 1
        self.skims = False
        for record in self._storages.unassigned():
            self._storages.assign(record, events.ACTIVATIONS)
        self.phase("backward")

    def backward_ended(self) -> None:
        """Between backward and optimizer."""
        self.phase("step")

    def optimizer_begins(self, optimizer: Any) -> None:
        """Gradients are whole here, so they get their role."""
        if self._main is None:
            self._main = optimizer
        parameters = [item for group in optimizer.param_groups for item in group["params"]]
        self._storages.role(parameters, events.WEIGHTS)
        self._storages.role(
            (parameter.grad for parameter in parameters if parameter.grad is not None), events.GRADIENTS
        )
        if self.draining and optimizer is self._main:
            self.stop("steady")
        self.phase("optimizer")

    def optimizer_ended(self, optimizer: Any) -> None:
        """One step more; twice the same memory is steady."""
        for state in optimizer.state.values():
            if isinstance(state, dict):
                self._storages.role(
                    (tensor for tensor in state.values() if isinstance(tensor, torch.Tensor)), events.OPTIMIZER
                )
        self.phase("step")
        if optimizer is not self._main:
            return
        self.index += 1
        memory = (self._storages.peak, self._storages.allocated)
        same = self._last is not None and all(
            abs(now - before) <= _SAME_SHARE * max(now, before) for now, before in zip(memory, self._last, strict=True)
        )
        self._alike = self._alike + 1 if same else 0
        self._last = memory
        self._storages.reset_peak()
        spent = self._tracer.count - self._operations_before
        self._operations_before = self._tracer.count
        if self._alike >= _SAME_STEPS - 1:
            self._drain(2 * spent + 2000)
        elif self.index >= self._settings.max_steps:
            self.stop("limit")

    def describe(self, module: Any) -> None:
        """Counts the parameters of the first root module."""
        parameters = list(module.parameters())
        self._writer.message(
            {
                "parameters": {
                    "count": sum(parameter.numel() for parameter in parameters),
                    "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
                    "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
                }
            }
        )

    def stop(self, reason: str, error: str | None = None) -> None:
        """Ends the process: the script's own clean-up would only write files."""
        self._writer.end(reason, self.index, error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _drain(self, operations: int) -> None:
        self.draining = True
        self._budget = self._tracer.count + operations
        timer = threading.Timer(self._settings.drain_seconds, self.stop, ("steady",))
        timer.daemon = True
        timer.start()
