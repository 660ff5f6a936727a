"""Scaled dot-product attention takes the kernel that CUDA would take, not the one of a device without kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from ..cuda import distinct

if TYPE_CHECKING:
    from ..session import Session

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256


def install(session: Session) -> None:
    """Replaces the function where PyTorch's own modules and all libraries look it up."""
    original = functional.scaled_dot_product_attention
    flash_gpu = session.settings.gpu.major >= 8 or bool(session.settings.gpu.gcn_arch)

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if _is_distributed(query):
            q, k, v, mask = _own_parts(query, key, value, attn_mask)
            own = attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
            return type(query).from_local(own, query.device_mesh, query.placements, run_check=False)
        if not (isinstance(query, FakeTensor) and query.fake_device.type == "cuda"):
            extra: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **extra)
        if torch.is_autocast_enabled("cuda"):
            half = torch.get_autocast_dtype("cuda")
            query, key, value, attn_mask = (_cast(item, half) for item in (query, key, value, attn_mask))
        return _fused(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, flash_gpu)

    for namespace in (functional, torch._C._nn):
        patched: Any = namespace
        patched.scaled_dot_product_attention = distinct(attention)
    for name in ("flash_attn.flash_attn_interface", "flash_attn"):
        session.imports.patch(name, lambda module: _flash_attention_package(session, module))
    session.imports.patch("xformers.ops", lambda module: _xformers(session, module))
    session.imports.patch("torch.nn.attention.flex_attention", lambda module: _flex(session, module))
    # The fused encoder layer of inference has no fake form; its parts have.
    torch.backends.mha.set_fastpath_enabled(False)


def _is_distributed(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor" and tensor.device.type == "cuda"


def _own_parts(*tensors: Any) -> list[Any]:
    """Of tensors whose heads are split over ranks: attention is the same on each rank's own."""
    return [tensor.to_local() if _is_distributed(tensor) else tensor for tensor in tensors]


def _flash_attention_package(session: Session, module: Any) -> None:
    """Its tensors are (batch, length, heads, head)."""

    def attend(
        q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: Any = None, causal: bool = False, **_: Any
    ) -> Any:
        session.writer.stand_in("flash_attn", "its kernels need a driver; PyTorch's own flash attention needs the same")
        q, k, v = (item.transpose(1, 2) for item in (q, k, v))
        out = functional.scaled_dot_product_attention(
            q, k, v, None, dropout_p, causal, scale=softmax_scale, enable_gqa=k.shape[1] != q.shape[1]
        )
        return out.transpose(1, 2)

    module.flash_attn_func = attend
    module.flash_attn_qkvpacked_func = lambda qkv, *args, **kwargs: attend(*qkv.unbind(2), *args, **kwargs)


def _xformers(session: Session, module: Any) -> None:
    def attend(
        query: Any, key: Any, value: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None, **_: Any
    ) -> Any:
        session.writer.stand_in("xformers", "its kernels need a driver; PyTorch's own attention needs the same")
        bias = attn_bias if isinstance(attn_bias, torch.Tensor) else None
        causal = attn_bias is not None and bias is None
        if query.dim() == 3:
            query, key, value = (item.unsqueeze(2) for item in (query, key, value))
        query, key, value = (item.transpose(1, 2) for item in (query, key, value))
        return functional.scaled_dot_product_attention(query, key, value, bias, p, causal, scale=scale).transpose(1, 2)

    module.memory_efficient_attention = attend


def _flex(session: Session, module: Any) -> None:
    """Flexible attention is one compiled kernel; run as written it would hold every score."""
    original = module.flex_attention

    def attend(
        query: Any,
        key: Any,
        value: Any,
        score_mod: Any = None,
        block_mask: Any = None,
        scale: Any = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        **more: Any,
    ) -> Any:
        if not isinstance(query, FakeTensor):
            return original(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, **more)
        session.writer.stand_in(
            "flex_attention", "its kernel is compiled; a fused kernel of the same shapes is counted"
        )
        out = functional.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
        return (out, query.new_empty(query.shape[:-1], dtype=torch.float32)) if return_lse else out

    module.flex_attention = attend


def _cast(tensor: Any, dtype: torch.dtype) -> Any:
    return tensor.to(dtype) if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor


def _fused(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
    flash_gpu: bool,
) -> Any:
    """The order of ``sdp_utils.cpp``: flash, memory-efficient, math."""
    four = query.dim() == key.dim() == value.dim() == 4
    head = query.size(-1)
    scale = scale if scale is not None else 1.0 / math.sqrt(head)
    same = value.size(-1) == head
    backends: Any = torch.backends.cuda
    flash = backends.flash_sdp_enabled() and flash_gpu and query.dtype in _HALVES and mask is None
    if four and flash and same and head <= _FLASH_HEAD:
        query, key, value = (_padded(item, 8) for item in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
        return out[..., :head] if out.size(-1) != head else out
    if grouped and key.size(-3) != query.size(-3):
        repeats = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    efficient = backends.mem_efficient_sdp_enabled()
    if four and efficient and query.dtype in (*_HALVES, torch.float32) and query.size(-2) and key.size(-2):
        bias = _bias(query, key, mask)
        keeps = torch.is_grad_enabled() and any(item.requires_grad for item in (query, key, value))
        results = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, keeps, dropout, causal, scale=scale
        )
        return results[0]
    return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, scale=scale)[0]


def _padded(tensor: Any, multiple: int) -> Any:
    missing = -tensor.size(-1) % multiple
    return functional.pad(tensor, (0, missing)) if missing else tensor


def _bias(query: Any, key: Any, mask: Any) -> Any:
    """A mask as the additive bias the kernel reads, rows aligned to 16 elements."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    mask = mask.to(query.dtype)
    missing = -mask.size(-1) % 16
    if missing:
        mask = functional.pad(mask, (0, missing))[..., : mask.size(-1)]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
