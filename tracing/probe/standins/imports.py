"""Runs a patch right after the script has imported a library, and never imports one by itself."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_MACHINERY = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", importlib.__file__, __file__)
_FIND_SPEC_FILE = importlib.util.find_spec.__code__.co_filename
Patch = Callable[[Any], None]


class _Loader(importlib.abc.Loader):
    """The library's own loader, then the patches."""

    def __init__(self, loader: Any, patches: list[Patch]) -> None:
        self._loader = loader
        self._patches = patches

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # The library must not see the difference.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for patch in self._patches:
            patch(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Empty(importlib.abc.Loader):
    """A module without content."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


class _ModuleLoader(importlib.abc.Loader):
    """A module that is loaded already, by the specification that it has back afterwards."""

    def __init__(self, own: importlib.machinery.ModuleSpec | None) -> None:
        self._own = own

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder in front of the others that only adds patches to what they find."""

    def __init__(self) -> None:
        self._patches: dict[str, list[Patch]] = {}
        self._replaced: set[str] = set()
        self._before: list[tuple[str, Callable[[], Any], str]] = []
        self._searching: set[str] = set()
        sys.meta_path.insert(0, self)

    def patch(self, name: str, patch: Patch) -> None:
        """``patch(module)`` once module ``name`` is imported; at once if it is already."""
        if name in sys.modules:
            patch(sys.modules[name])
        else:
            self._patches.setdefault(name, []).append(patch)

    def replace(self, name: str, parts: Sequence[str]) -> None:
        """A script that imports ``name`` or its ``parts`` without having it gets empty modules for the patches to fill.

        Libraries that only ask whether it is installed get the true answer.
        """
        self._replaced |= {name, *(f"{name}.{part}" for part in parts)}

    def before(self, prefix: str, prepare: Callable[[], Any], besides: str = "") -> None:
        """``prepare()`` before the first module is looked for whose name begins so and is not ``besides``."""
        self._before.append((prefix, prepare, besides))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        for hook in [item for item in self._before if fullname.startswith(item[0]) and fullname != item[2]]:
            self._before.remove(hook)
            hook[1]()
            if fullname in sys.modules:
                # It came with the package: a second one of the same name would have classes of its own. Python asks
                # such a module for its specification, whatever a finder says.
                module = sys.modules[fullname]
                module.__spec__ = importlib.machinery.ModuleSpec(fullname, _ModuleLoader(module.__spec__))
                return module.__spec__
        if fullname in self._searching or fullname not in (self._patches.keys() | self._replaced):
            return None
        self._searching.add(fullname)
        try:
            for finder in sys.meta_path:
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(fullname, path, target)
                    if spec is not None:
                        if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                            spec.loader = _Loader(spec.loader, self._patches.get(fullname, []))
                        return spec
        finally:
            self._searching.discard(fullname)
        if fullname in self._replaced and not _by_library(fullname):
            loader = _Loader(_Empty(), self._patches.get(fullname, []))
            return importlib.machinery.ModuleSpec(fullname, loader, is_package=True)
        return None


def _by_library(name: str) -> bool:
    """Whether a library wants ``name`` (to find out what there is), and not the script or what it has already."""
    if name.partition(".")[0] in sys.modules:
        return False
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _MACHINERY:
        frame = frame.f_back
    where = frame.f_code.co_filename if frame is not None else ""
    return "site-packages" in where or "dist-packages" in where or where == _FIND_SPEC_FILE
