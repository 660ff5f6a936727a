"""Optimizers take their list kernels for fake tensors as they do for CUDA's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer

if TYPE_CHECKING:
    from ..session import Session


def install(session: Session) -> None:
    """Adds the fake class to those that list kernels accept."""
    types = optimizer._foreach_supported_types
    if FakeTensor not in types:
        types.append(FakeTensor)
