"""Layers whose weights have four or eight bits, as bitsandbytes keeps them, without its kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from ..session import Session

# bitsandbytes: one scale per 64 weights; quantised again, 256 scales share one.
_BLOCK = 64
_OUTER_BLOCK = 256
# Tables of the sixteen and of the 256 values.
_CODE, _NESTED_CODE = 16, 256
_KEPT_WHOLE = ("lm_head", "embed_out", "score", "classifier")
_PACKED = "_kopt_packed"


class _Marked(type):
    """Parameters of these classes are plain ones: fake data bear no class of their own."""

    def __instancecheck__(cls, instance: object) -> bool:
        return bool(getattr(instance, "_kopt_kind", None) == cls.__name__)


class _Quantizable(metaclass=_Marked):
    def __new__(cls, data: Any = None, requires_grad: bool = False, *_: Any, **__: Any) -> Any:
        made: Any = nn.Parameter(torch.empty(0) if data is None else data, requires_grad=requires_grad)
        made._kopt_kind = cls.__name__
        return made


class Params4bit(_Quantizable):
    """A weight that is packed when its layer comes to the GPU."""


class Int8Params(_Quantizable):
    """A weight that becomes bytes when its layer comes to the GPU."""


class Linear4bit(nn.Linear):
    """A linear layer whose weight is packed on the GPU; each call unpacks it into the compute type for one product."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        compute_dtype: Any = None,
        compress_statistics: bool = True,
        quant_type: str = "fp4",
        quant_storage: Any = torch.uint8,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.weight = Params4bit(self.weight.data)
        self.compute_dtype, self.compress_statistics, self.quant_type = compute_dtype, compress_statistics, quant_type
        self.quant_storage = quant_storage

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if getattr(self.weight, _PACKED, False):
            return _move_packed(self, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight.device.type == "cuda":
            self._pack()
        return self

    def _pack(self) -> None:
        """The whole weight lies on the GPU while it is packed."""
        whole, count = self.weight, self.weight.numel()
        device, blocks = whole.device, math.ceil(count / _BLOCK)
        item = torch.empty(0, dtype=self.quant_storage).element_size()
        packed = torch.empty((math.ceil(count / 2 / item), 1), dtype=self.quant_storage, device=device)
        scales = torch.empty(blocks, dtype=torch.float32, device=device)
        self._hold("code", _CODE, torch.float32, device)
        if self.compress_statistics:
            self._hold("absmax", blocks, torch.uint8, device)
            self._hold("nested_absmax", math.ceil(blocks / _OUTER_BLOCK), torch.float32, device)
            self._hold("nested_code", _NESTED_CODE, torch.float32, device)
            self._hold("offset", 1, torch.float32, device)
        else:
            self.register_buffer("absmax", scales, persistent=False)
        self.weight = Params4bit(packed)
        setattr(self.weight, _PACKED, True)

    def _hold(self, name: str, count: int, dtype: torch.dtype, device: Any) -> None:
        self.register_buffer(name, torch.empty(count, dtype=dtype, device=device), persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [..., in] to [..., out]."""
        if not getattr(self.weight, _PACKED, False):
            self._pack()
        compute = self.compute_dtype or (input.dtype if input.is_floating_point() else torch.float32)
        bias = self.bias.to(compute) if self.bias is not None else None
        out = _Product.apply(input.to(compute), self.weight, bias, self.out_features)
        result: torch.Tensor = out.to(input.dtype)
        return result


def _move_packed(layer: Any, function: Any) -> Any:
    """Types do not change what is packed; devices do."""
    for module_parameters in (layer._parameters, layer._buffers):
        for name, parameter in module_parameters.items():
            moved = function(torch.empty(0, device=parameter.device)).device if parameter is not None else None
            if parameter is not None and moved != parameter.device:
                made = parameter.detach().to(moved)
                module_parameters[name] = made if not isinstance(parameter, nn.Parameter) else _again(parameter, made)
    return layer


def _again(before: Any, data: Any) -> Any:
    made: Any = nn.Parameter(data, requires_grad=before.requires_grad)
    made._kopt_kind = getattr(before, "_kopt_kind", None)
    setattr(made, _PACKED, getattr(before, _PACKED, False))
    return made


class _Product(torch.autograd.Function):
    """Keeps the packed weight for the backward pass and unpacks it again there."""

    @staticmethod
    def forward(context: Any, data: Any, packed: Any, bias: Any, outputs: int) -> Any:
        context.save_for_backward(packed)
        context.shape = (outputs, data.shape[-1])
        whole = torch.empty(context.shape, dtype=data.dtype, device=data.device)
        return nn.functional.linear(data, whole, bias)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        if not context.needs_input_grad[0]:
            return None, None, None, None
        whole = torch.empty(context.shape, dtype=gradients[0].dtype, device=gradients[0].device)
        bias = gradients[0].flatten(0, -2).sum(0) if context.needs_input_grad[2] else None
        return gradients[0] @ whole, None, bias, None


class LinearFP4(Linear4bit):
    """Four bits as floats."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        compute_dtype: Any = None,
        compress_statistics: bool = True,
        *rest: Any,
        **more: Any,
    ) -> None:
        super().__init__(
            input_features, output_features, bias, compute_dtype, compress_statistics, "fp4", *rest, **more
        )


class LinearNF4(LinearFP4):
    """Four bits as quantiles of a normal distribution."""


class Linear8bitLt(nn.Linear):
    """A linear layer in bytes: its inputs are rounded to bytes as well, the product comes as 32-bit integers."""

    def __init__(
        self,
        input_features: int,
        output_features: int,
        bias: bool = True,
        has_fp16_weights: bool = True,
        threshold: float = 0.0,
        index: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__(input_features, output_features, bias, device)
        self.has_fp16_weights, self.threshold, self.index = has_fp16_weights, threshold, index
        if not has_fp16_weights:
            self.weight = Int8Params(self.weight.data)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if getattr(self.weight, _PACKED, False):
            return _move_packed(self, fn)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not self.has_fp16_weights and self.weight.device.type == "cuda":
            device = self.weight.device
            half = self.weight.to(torch.float16)
            packed = torch.empty(half.shape, dtype=torch.int8, device=device)
            self.register_buffer("scales", torch.empty(self.out_features, device=device), persistent=False)
            self.weight = Int8Params(packed)
            setattr(self.weight, _PACKED, True)
        return self

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` [..., in] to [..., out]."""
        out: torch.Tensor = _ByteProduct.apply(input, self.weight, self.bias)
        return out


class _ByteProduct(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, data: Any, weight: Any, bias: Any) -> Any:
        context.save_for_backward(weight, *([data] if context.needs_input_grad[1] else []))
        half = data.to(torch.float16)
        rows = torch.empty(half.shape, dtype=torch.int8, device=data.device)
        scales = torch.empty(half.shape[:-1], dtype=torch.float32, device=data.device)
        if weight.dtype is not torch.int8:
            weight = torch.empty(weight.shape, dtype=torch.int8, device=data.device)
        whole = torch.empty((*data.shape[:-1], weight.shape[0]), dtype=torch.int32, device=data.device)
        del rows, scales
        out = torch.empty(whole.shape, dtype=torch.float16, device=data.device)
        return (out + bias if bias is not None else out).to(data.dtype)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        weight, *kept = context.saved_tensors
        gradient = gradients[0]
        whole = torch.empty(weight.shape, dtype=gradient.dtype, device=gradient.device)
        data = gradient @ whole if context.needs_input_grad[0] else None
        own = gradient.flatten(0, -2).t() @ kept[0].flatten(0, -2) if kept else None
        bias = gradient.flatten(0, -2).sum(0) if context.needs_input_grad[2] else None
        return data, own, bias


class StableEmbedding(nn.Embedding):
    """An embedding with a layer norm behind it."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *args, **kwargs)
        self.norm = nn.LayerNorm(embedding_dim, device=kwargs.get("device"))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Indices to vectors."""
        out: torch.Tensor = self.norm(super().forward(input))
        return out


LAYERS: dict[str, Any] = {
    "Linear4bit": Linear4bit,
    "LinearFP4": LinearFP4,
    "LinearNF4": LinearNF4,
    "Linear8bitLt": Linear8bitLt,
    "Params4bit": Params4bit,
    "Int8Params": Int8Params,
    "StableEmbedding": StableEmbedding,
    "Embedding": nn.Embedding,
}


def replace(session: Session, model: Any, settings: Any, eight: bool) -> None:
    """Replaces the linear layers that bitsandbytes would, in place."""
    session.writer.stand_in(
        "bitsandbytes", "its kernels need a driver; packed weights, scales and unpacking are counted"
    )
    four = bool(getattr(settings, "load_in_4bit", not eight))
    compute = getattr(settings, "bnb_4bit_compute_dtype", None) or torch.float32
    double = four and bool(getattr(settings, "bnb_4bit_use_double_quant", False))
    skipped = tuple(getattr(settings, "llm_int8_skip_modules", None) or _KEPT_WHOLE)
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full = f"{name}.{child_name}" if name else child_name
            if type(child) is nn.Linear and not any(part in full for part in skipped):
                setattr(module, child_name, _of(child, four, compute, double))


def _of(layer: nn.Linear, four: bool, compute: torch.dtype, double: bool) -> nn.Module:
    """The same layer with few bits; its weight is packed when it comes to the GPU."""
    kind: Any = Linear4bit if four else Linear8bitLt
    made = kind.__new__(kind)
    nn.Module.__init__(made)
    made.in_features, made.out_features, made.bias = layer.in_features, layer.out_features, layer.bias
    made.weight = layer.weight
    if four:
        made.compute_dtype, made.compress_statistics, made.quant_storage = compute, double, torch.uint8
        made.quant_type = "nf4"
    else:
        made.has_fp16_weights, made.threshold, made.index = False, 6.0, None
    packed: nn.Module = made
    return packed
