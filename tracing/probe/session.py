"""One script under the fake device: everything that is patched, in order, and the report at its end."""

from __future__ import annotations

import contextlib
import ctypes
from types import TracebackType
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from . import cuda, operations, outside, tensors
from .flops import formulas
from .modules import Modules
from .run import _hello
from .settings import Settings
from .standins import dynamo
from .standins import install as install_stand_ins
from .standins.imports import AfterImport
from .steps import Steps
from .storages import LiveStorages
from .stream import EventWriter
from .tracer import Tracer, UnsupportedOperation

_UNSUPPORTED = (UnsupportedOperation, DataDependentOutputException, DynamicOutputShapeException, NotImplementedError)


class Session:
    """Installs the fake device on entry. The script runs inside."""

    def __init__(self, settings: Settings, writer: EventWriter, library: ctypes.CDLL, arguments: list[str]) -> None:
        build: dict[str, object] = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": getattr(torch.version, "hip", None),
        }
        writer.message({"hello": _hello(arguments, build)})
        library.kopt_install_guard(settings.world_size)
        self.imports = AfterImport()
        self.stands_in_for_data = False
        """Whether a data set is not there, and a small one takes its place."""
        dynamo.install(self.imports)
        # It would make a real tensor on the device to start it.
        patched: Any = fake_tensor
        patched.init_gpu_context = lambda *_: None
        self._writer = writer
        self._settings = settings
        self.storages = LiveStorages(writer)
        self.tracer = Tracer(writer, self.storages, settings)
        self.steps = Steps(writer, self.storages, self.tracer, settings)
        self.tracer.handlers = operations.handlers()
        self.tracer.flop_formulas = formulas()
        cuda.install(library, settings, self.tracer)
        tensors.install(self.tracer)
        Modules(writer, self.steps).install(self.tracer)
        install_stand_ins(self)
        outside.install()
        self.steps.phase("load")
        self._stack = contextlib.ExitStack()

    @property
    def settings(self) -> Settings:
        """What the caller chose."""
        return self._settings

    @property
    def writer(self) -> EventWriter:
        """Where the events go."""
        return self._writer

    def __enter__(self) -> Session:
        self._stack.enter_context(self.tracer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def finished(self) -> None:
        """The script came to its own end."""
        self.steps.stop("steady" if self.steps.draining else "finished")

    def failed(self, text: str, error: BaseException | None) -> int:
        """The script broke: in what was seen already the answer stands, before that there is none."""
        if self.steps.draining:
            self._writer.warning(f"after the steady steps the script ended early: {text.strip().splitlines()[-1]}")
            self.steps.stop("steady")
        self.steps.stop("unsupported" if isinstance(error, _UNSUPPORTED) else "error", text)
        return 1
