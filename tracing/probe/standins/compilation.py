"""Compilers are taken out: a compiled function is run as written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..session import Session

_WHY = "compiled code was run eagerly, which needs as much memory or more"


def install(session: Session) -> None:
    """Patches ``torch.compile``, ``Module.compile`` and TorchScript."""

    def compile_(model: Any = None, **_: Any) -> Any:
        session.writer.stand_in("torch.compile", _WHY)
        return (lambda function: function) if model is None else model

    def script(obj: Any, *_: Any, **__: Any) -> Any:
        session.writer.stand_in("torch.jit.script", _WHY)
        return obj

    def launch(*_: Any, **__: Any) -> None:
        session.writer.stand_in("triton kernels", "they write into memory that was allocated before, and are left out")

    def without_kernels(module: Any) -> None:
        module.JITFunction.run = launch

    def without_graphs(module: Any) -> None:
        """A graph to be drawn is what tracing would have made of the model."""
        module.SummaryWriter.add_graph = lambda *_, **__: None

    session.imports.patch("torch.utils.tensorboard.writer", without_graphs)
    session.imports.patch("triton.runtime.jit", without_kernels)
    session.imports.patch("triton.runtime.autotuner", lambda module: setattr(module.Autotuner, "run", launch))
    patched: Any = torch
    patched.compile = compile_
    patched.nn.Module.compile = lambda self, *_, **__: compile_(self)
    patched.jit.script = script
    patched.jit.trace = lambda func, *_, **__: script(func)
