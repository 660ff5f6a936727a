"""Hooks into modules, autograd and optimizers: who allocates, and in which phase."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from .steps import Steps
from .stream import EventWriter
from .tracer import Tracer

# Marks kept for the backward pass; one forward pass of the largest models leaves some ten thousand.
_SEQUENCES = 200_000


class Modules:
    """Names the module that runs: forward by hooks, backward by autograd's sequence numbers."""

    def __init__(self, writer: EventWriter, steps: Steps) -> None:
        self._writer = writer
        self._steps = steps
        self._stack: list[int] = []
        self._paths: dict[int, tuple[Any, int]] = {}
        self._sequence: list[int] = []
        self._owner: list[int] = []
        self._roots: dict[str, int] = {}

    def current(self) -> int:
        """The id of the module that an operation belongs to."""
        node = torch._C._current_autograd_node()
        if node is not None and self._sequence:
            index = bisect_right(self._sequence, node._sequence_nr()) - 1
            return self._owner[index] if index >= 0 else 0
        return self._stack[-1] if self._stack else 0

    def install(self, tracer: Tracer) -> None:
        """From here on every module, backward pass and optimizer is followed."""
        tracer.current_module = self.current
        module_hooks.register_module_forward_pre_hook(self._enter)
        module_hooks.register_module_forward_hook(self._leave, always_call=True)
        self._follow_optimizers()
        optimizer_hooks.register_optimizer_step_pre_hook(lambda optimizer, *_: self._steps.optimizer_begins(optimizer))
        optimizer_hooks.register_optimizer_step_post_hook(lambda optimizer, *_: self._steps.optimizer_ended(optimizer))
        self._follow_backward()

    def _enter(self, module: Any, inputs: Any) -> None:
        if not self._stack:
            self._steps.forward_begins(module, _tensors(inputs))
            if len(self._sequence) > _SEQUENCES and torch._C._current_autograd_node() is None:
                self._sequence.clear()
                self._owner.clear()
        name_id = self._paths.get(id(module))
        if name_id is None or name_id[0]() is not module:
            self._learn(module)
            name_id = self._paths[id(module)]
        self._stack.append(name_id[1])
        self._record_owner(name_id[1])

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._record_owner(self._stack[-1] if self._stack else 0)

    def _record_owner(self, name: int) -> None:
        if torch._C._current_autograd_node() is None:
            self._sequence.append(torch._C._autograd._get_sequence_nr())
            self._owner.append(name)

    def _learn(self, root: Any) -> None:
        """Paths below a module that was not seen before; its own is its class."""
        kind = type(root).__name__
        count = self._roots[kind] = self._roots.get(kind, 0) + 1
        prefix = kind if count == 1 else f"{kind}#{count}"
        if self._stack:
            parent = next((text for text, number in self._writer.names() if number == self._stack[-1]), "")
            prefix = f"{parent}.{kind}" if parent else kind
        for path, module in root.named_modules():
            if id(module) not in self._paths or self._paths[id(module)][0]() is not module:
                name = f"{prefix}.{path}" if path else prefix
                self._paths[id(module)] = (weakref.ref(module), self._writer.name(name))

    def _follow_optimizers(self) -> None:
        """A script that makes one means to train: calls without gradients before that are no inference."""
        kind: Any = optimizer_hooks.Optimizer
        original = kind.__init__

        def create(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._steps.trains = True
            original(optimizer, *args, **kwargs)

        kind.__init__ = create

    def _follow_backward(self) -> None:
        original = torch.autograd.graph._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            self._steps.backward_begins()
            try:
                return original(*args, **kwargs)
            finally:
                self._steps.backward_ended()

        for module in (torch.autograd.graph, torch.autograd):
            patched: Any = module
            patched._engine_run_backward = run


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []
