"""bitsandbytes without its kernels, also where it is not installed: quantised layers and optimizers of eight bits."""

from __future__ import annotations

import math
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from . import quantized

if TYPE_CHECKING:
    from ..session import Session

# One scale per 256 numbers of a state; small tensors keep theirs whole, and only large ones are paged.
_BLOCK = 256
_SMALLEST_IN_BYTES = 4096
_SMALLEST_PAGED = 100_000
# Name: states of a parameter's size.
_OPTIMIZERS = {
    "Adam": 2,
    "AdamW": 2,
    "LAMB": 2,
    "AdEMAMix": 3,
    "SGD": 1,
    "RMSprop": 1,
    "Adagrad": 1,
    "LARS": 1,
    "Lion": 1,
}
_WHY = "its kernels need a driver; packed weights, scales and states are counted"


def install(session: Session) -> None:
    """Replaces the package's classes once it is imported; a script that imports it without having it gets them too."""

    def fill(module: Any) -> None:
        session.writer.stand_in("bitsandbytes", _WHY)
        _fill(session, module)

    session.imports.patch("bitsandbytes", fill)
    session.imports.replace("bitsandbytes", ("nn", "optim", "functional"))


def _fill(session: Session, module: Any) -> None:
    for name in ("nn", "optim", "functional"):
        if not isinstance(getattr(module, name, None), ModuleType):
            setattr(module, name, import_module(f"{module.__name__}.{name}"))
    modules = getattr(module.nn, "modules", module.nn)
    for namespace in (module.nn, modules):
        for name, layer in quantized.LAYERS.items():
            setattr(namespace, name, layer)
    for name, optimizer in _optimizers(session).items():
        setattr(module.optim, name, optimizer)
    module.optim.GlobalOptimManager = Overrides
    if not hasattr(module, "__version__"):
        module.__version__ = "0.0"


class Overrides:
    """Bits for single parameters, which Trainer asks for embeddings."""

    _only: Overrides | None = None

    def __init__(self) -> None:
        self.bits: dict[int, int] = {}

    @classmethod
    def get_instance(cls) -> Overrides:
        """The one of this process."""
        cls._only = cls._only or cls()
        return cls._only

    def register_module_override(self, module: Any, name: str, settings: dict[str, Any]) -> None:
        """Settings for a module's parameter."""
        self.bits[id(getattr(module, name))] = int(settings.get("optim_bits", 32))

    def register_parameters(self, parameters: Any) -> None:
        """Nothing to note: parameters are found by identity."""

    def override_config(self, parameters: Any, key: Any = None, value: Any = None, key_value_dict: Any = None) -> None:
        """Settings for parameters."""
        overrides = {**(key_value_dict or {}), **({key: value} if key is not None else {})}
        for parameter in parameters if isinstance(parameters, (list, tuple)) else [parameters]:
            self.bits[id(parameter)] = int(overrides.get("optim_bits", 32))


def _optimizers(session: Session) -> dict[str, Any]:
    made = {}
    for name, states in _OPTIMIZERS.items():
        for paged in ("", "Paged"):
            for bits, ending in ((None, ""), (8, "8bit"), (32, "32bit")):
                full = f"{paged}{name}{ending}"
                made[full] = type(
                    full,
                    (_Optimizer,),
                    {
                        "session": session,
                        "states": states,
                        "fixed_bits": bits,
                        "always_paged": bool(paged),
                    },
                )
    return made


class _Optimizer(torch.optim.Optimizer):
    """States of eight bits with their scales, or of 32; made at the first step."""

    session: Any
    states: int
    fixed_bits: int | None
    always_paged: bool

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *args: Any,
        optim_bits: int = 32,
        is_paged: bool = False,
        min_8bit_size: int = _SMALLEST_IN_BYTES,
        **settings: Any,
    ) -> None:
        defaults = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        super().__init__(
            params, {"lr": lr, **defaults, **{name: settings[name] for name in defaults if name in settings}}
        )
        self.bits, self.is_paged = self.fixed_bits or optim_bits, is_paged or self.always_paged
        self.smallest = min_8bit_size

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """States appear; the update itself happens in place."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for item in group["params"]:
                if item.grad is not None and not self.state[item]:
                    self._begin(item)
                if item.grad is not None:
                    item.add_(item.grad.to(item.dtype) if item.grad.dtype != item.dtype else item.grad, alpha=-1.0)
        return loss

    def _begin(self, item: Any) -> None:
        count, bits = item.numel(), Overrides.get_instance().bits.get(id(item), self.bits)
        eight = bits == 8 and count >= self.smallest
        device = item.device
        if self.is_paged and count >= _SMALLEST_PAGED:
            self.session.writer.assumption("pages of a paged optimizer were taken to lie in the host's memory")
            device = torch.device("cpu")
        state = self.state[item]
        state["step"] = 0
        for number in range(1, self.states + 1):
            state[f"state{number}"] = torch.empty(
                item.shape, dtype=torch.uint8 if eight else torch.float32, device=device
            )
            if eight:
                state[f"absmax{number}"] = torch.empty(math.ceil(count / _BLOCK), device=item.device)
                state[f"qmap{number}"] = self._map(number, item.device)

    def _map(self, number: int, device: Any) -> Any:
        """The 256 values that a byte stands for: one table for all parameters."""
        tables: dict[Any, Any] = self.__dict__.setdefault("_tables", {})
        if (number, device) not in tables:
            tables[number, device] = torch.empty(256, device=device)
        return tables[number, device]
