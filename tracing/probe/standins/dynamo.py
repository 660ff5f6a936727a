"""``torch._dynamo`` without its import, which takes as long as that of torch: nothing is compiled here.

Optimizers and decorators of PyTorch import the package only to tell the compiler that it must not look. What they use
is answered; any other access gets the package itself.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .imports import AfterImport

_NAME = "torch._dynamo"


def install(imports: AfterImport) -> None:
    """Puts the small one in place, unless the package is imported already."""
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is None or not spec.submodule_search_locations:
        return
    small: Any = _Dynamo(_NAME)
    small.__path__ = list(spec.submodule_search_locations)
    small.__spec__ = spec
    sys.modules[_NAME] = small
    patched: Any = torch
    patched._dynamo = small
    # Fake tensors read the settings, which need nothing else of the package.
    imports.before(f"{_NAME}.", _whole, besides=f"{_NAME}.config")


def _whole() -> Any:
    """The package itself, from here on for everybody."""
    if isinstance(sys.modules.get(_NAME), _Dynamo):
        del sys.modules[_NAME]
        patched: Any = torch
        patched._dynamo = import_module(_NAME)
        for name, module in list(sys.modules.items()):
            if name.rpartition(".")[0] == _NAME:
                setattr(patched._dynamo, name.rpartition(".")[2], module)
    return sys.modules[_NAME]


class _Never(nn.Module):
    """What a compiled module would be."""


def _same(function: Any = None, *_: Any, **__: Any) -> Any:
    return (lambda item: item) if function is None else function


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _Part:
    """A module of the package: takes any setting, knows a few names."""

    def __init__(self, name: str, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_whole(), self._name), name)


class _Dynamo(ModuleType):
    OptimizedModule = _Never
    eval_frame = _Part("eval_frame", OptimizedModule=_Never)
    trace_rules = _Part("trace_rules", clear_lru_cache=_nothing)
    disable = staticmethod(_same)
    allow_in_graph = staticmethod(_same)
    disallow_in_graph = staticmethod(_same)
    forbid_in_graph = staticmethod(_same)
    graph_break = staticmethod(_nothing)
    reset = staticmethod(_nothing)
    mark_dynamic = staticmethod(_nothing)
    maybe_mark_dynamic = staticmethod(_nothing)
    mark_static = staticmethod(_nothing)
    mark_static_address = staticmethod(_nothing)

    @staticmethod
    def is_compiling() -> bool:
        return False

    @staticmethod
    def is_dynamo_supported() -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_whole(), name)
