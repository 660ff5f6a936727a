"""Names that trainers share for precisions, optimizers and the linear layers that adapters go on."""

from collections.abc import Sequence

from kopt.core.workload.training_plan import Adapter, ModelShape, OptimizerKind, PlanError, Precision

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_FUSED_QKV = {"c_attn", "qkv_proj", "query_key_value", "wqkv", "w_pack", "attn.c_attn", "qkv"}
_OUTPUT = {"o_proj", "out_proj", "dense", "wo", "output_proj", "proj", "attn.c_proj"}
_UP = {"gate_proj", "up_proj", "w1", "w2", "w3", "fc1", "dense_h_to_4h", "c_fc", "fc_1", "fc_2", "gate_up_proj"}
_DOWN = {"down_proj", "c_proj", "fc2", "dense_4h_to_h", "mlp.c_proj"}

_PRECISIONS = {
    "bf16": Precision.BF16,
    "bfloat16": Precision.BF16,
    "bf16-true": Precision.BF16,
    "pure_bf16": Precision.BF16,
    "fp16": Precision.FP16,
    "float16": Precision.FP16,
    "half": Precision.FP16,
    "16-true": Precision.FP16,
    "fp32": Precision.FP32,
    "float32": Precision.FP32,
    "float": Precision.FP32,
    "32-true": Precision.FP32,
    "no": Precision.FP32,
    "fp8": Precision.FP8,
    "fp8_e4m3": Precision.FP8,
    "int8": Precision.INT8,
    "8": Precision.INT8,
    "int4": Precision.INT4,
    "4": Precision.NF4,
    "nf4": Precision.NF4,
    "bnb.nf4": Precision.NF4,
    "bnb.nf4-dq": Precision.NF4_DOUBLE,
    "awq": Precision.INT4,
    "gptq": Precision.INT4,
    "bitsandbytes": Precision.NF4,
}


def precision(name: str, default: Precision) -> Precision:
    """A precision by any of its usual names; "auto" and "" are the default.

    Raises:
        PlanError: no such precision.
    """
    key = name.strip().lower().removeprefix("torch.")
    if key in ("", "auto", "none"):
        return default
    if key not in _PRECISIONS:
        raise PlanError(f"{name[:40]!r} is no precision; give one of {', '.join(sorted(set(_PRECISIONS)))}")
    return _PRECISIONS[key]


_QUANTISED: tuple[tuple[str, Precision | None], ...] = (
    ("awq", Precision.INT4),
    ("int8", Precision.INT8),
    ("w8a8", Precision.INT8),
    ("gptq", Precision.INT4),
    ("int4", Precision.INT4),
    ("w4a16", Precision.INT4),
    ("fp8", Precision.FP8),
    ("nf4-dq", Precision.NF4_DOUBLE),
    ("nf4", Precision.NF4),
    ("bitsandbytes", Precision.NF4),
    ("bnb", Precision.NF4),
    ("mxfp4", Precision.MXFP4),
    # Published so, without a word in the name.
    ("gpt-oss", Precision.MXFP4),
    ("deepseek-v3", Precision.FP8),
    ("deepseek-r1-distill", None),
    ("deepseek-r1", Precision.FP8),
    ("kimi-k2-thinking", Precision.INT4),
    ("kimi-k2.5", Precision.INT4),
    ("kimi-k2", Precision.FP8),
    ("minimax-m2", Precision.FP8),
)


def quantisation(*texts: str) -> Precision | None:
    """The precision of quantised weights as an option or the model's name has it, the first that says so."""
    for text in (text.lower() for text in texts):
        if "bf16" in text and "nf4" not in text:
            return None
        for part, held in _QUANTISED:
            if part in text:
                return held
    return None


def optimizer_kind(name: str) -> tuple[OptimizerKind, bool]:
    """The kind of an optimizer by its name, and whether it steps with copies of all tensors at once."""
    key = name.strip().lower().rpartition(".")[2]
    fused = "fused" in key or "8bit" in key or "8-bit" in key or "paged" in key
    if "ademamix" in key or "grokadam" in key:
        return (OptimizerKind.THREE_8BIT if "8bit" in key else OptimizerKind.THREE), False
    if "lomo" in key:
        # AdaLomo keeps rows and columns of second moments, Lomo nothing; either steps in the backward pass.
        return (OptimizerKind.ADAFACTOR if "ada" in key else OptimizerKind.SGD), False
    if "4bit" in key:
        return OptimizerKind.ADAM_4BIT, False
    if any(part in key for part in ("8bit", "8-bit", "bnb", "fp8")):
        return OptimizerKind.ADAM_8BIT, False
    for part, kind in (
        ("adafactor", OptimizerKind.ADAFACTOR),
        ("lion", OptimizerKind.LION),
        ("muon", OptimizerKind.MUON),
        ("galore", OptimizerKind.ADAFACTOR),
        ("adam", OptimizerKind.ADAM),
        ("lamb", OptimizerKind.ADAM),
        ("sgd", OptimizerKind.MOMENTUM),
        ("rmsprop", OptimizerKind.MOMENTUM),
        ("adagrad", OptimizerKind.MOMENTUM),
    ):
        if part in key:
            return kind, not fused and kind is OptimizerKind.ADAM
    return OptimizerKind.ADAM, not fused


def adapter(model: ModelShape, rank: int, targets: Sequence[str], *, dropout: bool = True, layers: int = 0) -> Adapter:
    """A low-rank adapter on the named linear layers ("all" and "all-linear": on every one).

    Raises:
        PlanError: a rank of zero.
    """
    if rank < 1:
        raise PlanError("the adapter's rank must be above zero")
    names = [name.rpartition(".")[2].lower() if name.count(".") < 2 else name.lower() for name in targets] or [
        "q_proj",
        "v_proj",
    ]
    if any(name in ("all", "all-linear", "all_linear") for name in names):
        names = list(ALL_LINEAR if model.gated else [name for name in ALL_LINEAR if name != "gate_proj"])
    per_layer = sum(rank * _widths(model, name) for name in names)
    read = sum(_input_width(model, name) for name in names)
    return Adapter(per_layer * (layers or model.layers), rank, len(names), dropout, inputs=read)


def _input_width(model: ModelShape, target: str) -> int:
    if target in _DOWN:
        return model.experts.ffn * model.experts.per_token if model.experts else model.ffn
    return model.value_width if target in _OUTPUT else model.hidden


def _widths(model: ModelShape, target: str) -> int:
    """Inputs plus outputs of one linear layer."""
    keys = model.kv_heads * model.head_dim
    ffn = model.experts.ffn * model.experts.count if model.experts else model.ffn
    if target in _FUSED_QKV:
        return model.hidden + model.query_width + 2 * keys
    if target in ("k_proj", "v_proj", "key", "value"):
        return model.hidden + keys
    if target in _OUTPUT:
        return model.value_width + model.hidden
    if target in _UP or target in _DOWN:
        return model.hidden + ffn
    return model.hidden + model.query_width
