"""Parameters whose shape the first batch tells: moving them to the GPU is a wish that they keep until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import parameter
from torch.nn.parameter import UninitializedParameter, is_lazy

from ..tensors import swap

if TYPE_CHECKING:
    from ..session import Session

_WISH = "_kopt_place"


def install(session: Session) -> None:
    """Patches ``Module._apply`` and ``materialize``: a fake tensor cannot become the data of a real one."""
    module: Any = torch.nn.Module
    original = module._apply

    def apply(self: Any, function: Any, recurse: bool = True) -> Any:
        pending = [
            (held, name, item)
            for held in (self._parameters, self._buffers)
            for name, item in held.items()
            if item is not None and is_lazy(item)
        ]
        for held, name, item in pending:
            held[name] = None
            location, kind = _wish(item)
            moved = function(torch.empty(0, device=location, dtype=kind))
            item.__dict__[_WISH] = (moved.device, moved.dtype)
        try:
            return original(self, function, recurse)
        finally:
            for held, name, item in pending:
                held[name] = item

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        location, kind = _wish(self)
        made: Any = torch.empty(shape, device=device or location, dtype=dtype or kind)
        if isinstance(self, UninitializedParameter):
            made = torch.nn.Parameter(made, requires_grad=self.requires_grad)
        swap(self, made)

    module._apply = apply
    lazies: Any = parameter
    lazies.UninitializedTensorMixin.materialize = materialize


def _wish(tensor: Any) -> tuple[torch.device, torch.dtype]:
    """Where and as what it shall be made."""
    result: tuple[torch.device, torch.dtype] = tensor.__dict__.get(_WISH) or (tensor.data.device, tensor.data.dtype)
    return result
