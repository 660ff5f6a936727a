"""Recurrent networks and CTC as cuDNN runs them: one call, one reserve of memory for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from ..session import Session
    from ..tracer import Tracer

aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
# What cuDNN keeps per step, layer, direction and hidden unit: the gates, the state and what follows from it.
_KEPT = {0: 2, 1: 2, 2: 6, 3: 5}


def install(session: Session) -> None:
    """Replaces the entry points of ``torch.nn``'s recurrent modules for tensors on the fake GPU."""
    session.tracer.handlers["aten::_cudnn_rnn"] = _forward
    session.tracer.handlers["aten::_cudnn_rnn_backward"] = _backward
    session.tracer.handlers["aten::_pack_padded_sequence"] = _pack
    for library in ("cudnn", "miopen"):
        session.tracer.handlers[f"aten::_use_{library}_ctc_loss"] = lambda *_: False
    session.tracer.handlers["aten::_ctc_loss"] = _ctc
    session.tracer.handlers["aten::_ctc_loss_backward"] = lambda tracer, func, args, kwargs: tracer.like(args[1])
    _lengths(session)
    for name, mode in _MODES.items():
        setattr(torch._VF, name, _entry(session, name, mode, getattr(torch._VF, name)))
    # Flattening sets weights to views of one buffer of the same size.
    torch.backends.cudnn.is_acceptable = lambda tensor: False


def _lengths(session: Session) -> None:
    """CUDA reads the lengths on the host; from tensors of a class of their own PyTorch would not."""
    patched: Any = torch
    original = patched.ctc_loss

    def listed(lengths: Any) -> Any:
        return session.tracer.materialise(lengths).tolist() if isinstance(lengths, torch.Tensor) else lengths

    def loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(log_probs, FakeTensor):
            input_lengths, target_lengths = listed(input_lengths), listed(target_lengths)
        return original(log_probs, targets, input_lengths, target_lengths, *rest, **more)

    patched.ctc_loss = loss


def _entry(session: Session, name: str, mode: int, original: Any) -> Any:
    def run(*arguments: Any) -> Any:
        if not isinstance(arguments[0], FakeTensor) or arguments[0].fake_device.type != "cuda":
            return original(*arguments)
        session.writer.assumption(f"the memory that cuDNN keeps for {name}'s backward pass is estimated")
        packed = isinstance(arguments[1], torch.Tensor) and isinstance(arguments[3], bool) is False
        if packed:
            data, sizes, state, weights, biases, layers, dropout, train, both = arguments
            first = False
        else:
            data, state, weights, biases, layers, dropout, train, both, first = arguments
            sizes = None
        hidden, cell = (state[0], state[1]) if mode == _MODES["lstm"] else (state, None)
        if torch.is_autocast_enabled("cuda"):
            half = torch.get_autocast_dtype("cuda")
            data, hidden = data.to(half), hidden.to(half)
            cell = cell.to(half) if cell is not None else None
            weights = [weight.to(half) for weight in weights]
        projection = cell is not None and hidden.size(-1) != cell.size(-1)
        units = cell.size(-1) if cell is not None else hidden.size(-1)
        out, hy, cy, _, _ = aten._cudnn_rnn(
            data,
            list(weights),
            4 if biases else 2,
            None,
            hidden,
            cell,
            mode,
            units,
            hidden.size(-1) if projection else 0,
            layers,
            first,
            dropout,
            train,
            both,
            [] if sizes is None else sizes.tolist(),
            None,
        )
        return (out, hy, cy) if cell is not None else (out, hy)

    return run


def _forward(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, _, _, hidden, cell, mode, units, projection, layers, _, _, train, both = args[:14]
    directions = 2 if both else 1
    width = projection or units
    shape = (*data.shape[:-1], width * directions)
    out = tracer.empty(shape, data.dtype, data.device)
    hy, cy = tracer.like(hidden), tracer.like(cell) if cell is not None else tracer.empty((0,), data.dtype, data.device)
    places = data.numel() // max(1, data.shape[-1])
    kept = places * layers * directions * units * _KEPT[mode] * data.element_size() if train else 0
    reserve = tracer.empty((kept,), torch.uint8, data.device)
    total = sum(weight.numel() for weight in weights)
    return out, hy, cy, reserve, tracer.empty((total,), data.dtype, data.device)


def _backward(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, hidden, cell = args[0], args[1], args[4], args[5]
    return (
        tracer.like(data),
        tracer.like(hidden),
        tracer.like(cell) if cell is not None else None,
        [tracer.like(weight) for weight in weights],
    )


def _pack(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    """The packed data, and on the CPU how many sequences go on at each step."""
    data, lengths, first = args
    real = tracer.materialise(lengths)
    steps = torch.arange(int(real.max()) if real.numel() else 0)
    sizes = (real[None, :] > steps[:, None]).sum(1)
    batch_dim = 0 if first else 1
    shape = (
        int(real.sum()),
        *[size for dim, size in enumerate(data.shape) if dim not in (batch_dim, 1 - batch_dim)],
    )
    return tracer.empty(shape, data.dtype, data.device), sizes


def _ctc(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    log_probs, targets, lengths = args[0], args[1], args[3]
    steps, batch = log_probs.shape[0], log_probs.shape[1]
    if isinstance(lengths, torch.Tensor):
        real_lengths = tracer.values.of(lengths)
        longest = int(real_lengths.max()) if real_lengths is not None and real_lengths.numel() else None
    else:
        longest = max(lengths, default=0)
    if longest is None:
        longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // max(1, batch))
    loss = tracer.empty((batch,), log_probs.dtype, log_probs.device)
    return loss, tracer.empty((batch, steps, 2 * longest + 1), log_probs.dtype, log_probs.device)
