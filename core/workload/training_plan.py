"""What a training or serving job of a transformer is made of, as far as memory depends on it.

A ``TrainingPlan`` is read from a trainer's arguments or configuration (``formats.trainers``) and priced by
``models.sizing.analytic``. Sizes are elements unless a name says bytes; batch and sequence are those of a micro-batch.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum

from kopt.core.reason import Reason


class PlanError(ValueError):
    """A plan cannot be made of what was given; the message says what to give."""


MAX_LAYERS = 10_000
"""Layers, and pipeline stages: an estimate goes through all of them."""


class Precision(StrEnum):
    """Number formats; ``bytes_each`` includes scales and zero points kept beside the numbers."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    GPTQ8 = "gptq-int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    NF4 = "nf4"
    NF4_DOUBLE = "nf4-double"

    @property
    def bytes_each(self) -> float:
        # int4: a 16-bit scale and a 4-bit zero per group of 128; mxfp4: an 8-bit scale per 32 (OCP MX v1.0);
        # NF4: a 32-bit scale per 64, in 8 bits when doubled.
        return {
            "fp32": 4.0,
            "bf16": 2.0,
            "fp16": 2.0,
            "fp8": 1.0,
            "int8": 1.0,
            "gptq-int8": 1.0 + 3 / 128,
            "int4": 0.5 + 2.5 / 128,
            "mxfp4": 0.5 + 1 / 32,
            "nf4": 0.5 + 4 / 64,
            "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256),
        }[self.value]

    @property
    def quantised(self) -> bool:
        """Only linear layers are held so; embeddings and norms stay in the compute precision."""
        return self not in (Precision.FP32, Precision.BF16, Precision.FP16)


class Recompute(StrEnum):
    """What is thrown away in the forward pass and computed again for the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """The attention matrix only (Korthikanti et al. 2022)."""
    PRODUCTS = "products"
    """All but every second matrix product and the attention's output (torchtitan's selective checkpointing)."""
    FULL = "full"
    """All but the input of each layer."""


class Attention(StrEnum):
    """Whether the matrix of scores is held in memory."""

    FLASH = "flash"
    EAGER = "eager"


class Sharding(StrEnum):
    """What data-parallel ranks hold a part of (Rajbhandari et al. 2020)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class OptimizerKind(StrEnum):
    """Optimizers by what they keep; ``state_bytes`` per trained number, the precision of states given."""

    ADAM = "adam"
    ADAM_8BIT = "adam-8bit"
    ADAM_4BIT = "adam-4bit"
    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAFACTOR = "adafactor"
    LION = "lion"
    MUON = "muon"
    THREE = "three"
    """AdEMAMix and GrokAdamW: Adam's two moments and a second average of gradients."""
    THREE_8BIT = "three-8bit"
    NONE = "none"

    def state_bytes(self, each: float) -> float:
        """Small states carry a 32-bit scale per block of 256, 4-bit ones of 128; Adafactor keeps rows and columns."""
        return {
            "adam": 2 * each,
            "adam-8bit": 2 * (1 + 4 / 256),
            "adam-4bit": 2 * (0.5 + 4 / 128),
            "sgd": 0.0,
            "momentum": each,
            "adafactor": 0.02 * each,
            "lion": each,
            "muon": each,
            "three": 3 * each,
            "three-8bit": 3 * (1 + 4 / 256),
            "none": 0.0,
        }[self.value]


class Style(StrEnum):
    """How the model's code is written, which decides what autograd keeps."""

    FUSED = "fused"
    """Megatron, Transformer Engine: fused norms, activations and bias."""
    EAGER = "eager"
    """Plain modules as in transformers: 32-bit copies in norms, each product kept."""


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): ranks of the compressions and sizes of a head's parts."""

    query_rank: int
    key_value_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in all but ``dense_layers``: inner width per expert and of those that see every token."""

    count: int
    per_token: int
    ffn: int
    shared_ffn: int = 0
    dense_layers: int = 0
    capacity_factor: float = 0.0


@dataclass(frozen=True)
class StateSpace:
    """A Mamba-2 mixer: size of the state, of a head, groups of the projections, heads (0: twice the hidden size)."""

    state: int = 128
    head_dim: int = 64
    groups: int = 8
    heads: int = 0

    def widths(self, hidden: int) -> tuple[int, int]:
        """The inner width, and what the input projection puts out: gate, values, B, C and a step per head."""
        inner = self.heads * self.head_dim or 2 * hidden
        return inner, 2 * inner + 2 * self.groups * self.state + inner // self.head_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one mixer, its norms included; the convolution over time spans four steps."""
        inner, projected = self.widths(hidden)
        convolution = 5 * (inner + 2 * self.groups * self.state)
        return hidden * (projected + inner) + convolution + 3 * (inner // self.head_dim) + inner + hidden


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a transformer. ``cross_layers`` are decoder layers beside ``layers`` encoder layers (T5).

    ``blocks`` tells the kind of each layer of a hybrid model: M state space, * attention, - feed-forward, E experts;
    without it every layer has attention and a feed-forward part. ``towers`` are the weights of what turns pictures or
    sound into the language model's tokens. ``doubt`` is the factor by which memory may be off
    because the dimensions are not the model's own (``size_in_name``).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    bias: bool = False
    qkv_bias: bool = False
    positions: int = 0
    cross_layers: int = 0
    experts: Experts | None = None
    latent: LatentAttention | None = None
    blocks: str = ""
    state_space: StateSpace = StateSpace()
    towers: int = 0
    doubt: float = 1.0

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
        for name in sizes:
            if not 0 < getattr(self, name) < 1 << 30:
                raise PlanError(f"{self.name or 'the model'}: {name} must be above zero, not {getattr(self, name)}")
        if self.layers > MAX_LAYERS:
            raise PlanError(
                f"{self.name or 'the model'}: {self.layers:,} layers are more than any model's {MAX_LAYERS:,}"
            )

    @property
    def query_width(self) -> int:
        return self.heads * (self.latent.nope + self.latent.rope if self.latent else self.head_dim)

    @property
    def value_width(self) -> int:
        return self.heads * (self.latent.value if self.latent else self.head_dim)

    @property
    def linear_outputs(self) -> int:
        """Numbers per token that a layer's linear modules put out together."""
        attention = self.query_width + 2 * self.kv_heads * self.head_dim + self.hidden
        return attention + (1 + self.gated) * self.ffn + self.hidden

    @property
    def cache_width(self) -> int:
        """Numbers per token and layer that generation keeps: keys and values, or the latent of both."""
        if self.latent:
            return self.latent.key_value_rank + self.latent.rope
        return 2 * self.kv_heads * self.head_dim

    def attention_parameters(self) -> int:
        """Weights of one attention block, biases and norm included."""
        biases = (
            self.bias * (self.hidden + self.query_width)
            + (self.bias or self.qkv_bias) * 2 * self.kv_heads * self.head_dim
        )
        if self.latent is not None:
            latent = self.latent
            query = (self.hidden + self.query_width) * latent.query_rank or self.hidden * self.query_width
            down = self.hidden * (latent.key_value_rank + latent.rope)
            up = latent.key_value_rank * self.heads * (latent.nope + latent.value)
            return query + down + up + self.heads * latent.value * self.hidden + self.hidden
        widths = self.query_width + 2 * self.kv_heads * self.head_dim
        return self.hidden * (widths + self.value_width) + biases + self.hidden * (2 if self.bias else 1)

    def mlp_parameters(self, ffn: int) -> int:
        """Weights of one feed-forward block of inner width ``ffn``, its norm included."""
        return self.hidden * ffn * (3 if self.gated else 2) + self.bias * (ffn + 2 * self.hidden) + self.hidden

    def layer_parameters(self, layer: int) -> tuple[int, int]:
        """Weights of layer ``layer``: those every rank of an expert group holds, and those spread over the group."""
        kind = self.blocks[layer] if self.blocks else ""
        if kind == "M":
            return self.state_space.parameters(self.hidden), 0
        attention = self.attention_parameters() if kind in ("", "*") else 0
        if kind == "*":
            return attention, 0
        if kind == "-" or self.experts is None or layer < self.experts.dense_layers:
            return attention + self.mlp_parameters(self.ffn), 0
        experts = self.experts
        shared = self.mlp_parameters(experts.shared_ffn) if experts.shared_ffn else self.hidden
        routed = experts.count * (self.mlp_parameters(experts.ffn) - self.hidden)
        return attention + shared + self.hidden * experts.count, routed

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    def parameters(self) -> int:
        """All weights of the model."""
        layers = sum(sum(self.layer_parameters(layer)) for layer in range(self.layers))
        crossed = self.cross_layers * (sum(self.layer_parameters(0)) + self.attention_parameters())
        ends = self.embedding * (1 if self.tied else 2) + self.positions * self.hidden + self.hidden
        return layers + crossed + ends + self.towers

    def active_parameters(self) -> int:
        """Weights that one token meets: of the experts only those that it is sent to."""
        if self.experts is None:
            return self.parameters()
        share = self.experts.per_token / max(1, self.experts.count)
        routed = sum(self.layer_parameters(layer)[1] for layer in range(self.layers))
        return self.parameters() - round(routed * (1 - share))


@dataclass(frozen=True)
class Parallelism:
    """How many ranks share what. ``data`` is the rest: world / (tensor · pipeline · context)."""

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 0
    virtual_stages: int = 1
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    """Layers of the outer stages where they differ from the rest; 0: as many as the others."""
    sequence_parallel: bool = False
    sharding: Sharding = Sharding.NONE
    shards: int = 0
    """Ranks that share sharded states; 0: all data-parallel ones (and context-parallel ones)."""
    offload_optimizer: bool = False
    offload_parameters: bool = False

    def __post_init__(self) -> None:
        for item in ("data", "tensor", "pipeline", "context", "expert", "virtual_stages"):
            if not 0 < getattr(self, item) <= 1 << 20:
                raise PlanError(f"{item} parallel size must be above zero, not {getattr(self, item)}")
        if self.pipeline > MAX_LAYERS:
            raise PlanError(f"{self.pipeline:,} pipeline stages are more than any model has layers")

    @property
    def world(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def shard_ranks(self) -> int:
        return self.shards or self.data * self.context


@dataclass(frozen=True)
class Adapter:
    """A low-rank adapter: ``trainable`` numbers in all; ``targets`` linear layers of each layer have one.

    ``saved`` more numbers are trained as copies of whole modules (an embedding, a head) in the weights' own precision.
    ``scales``: every linear layer has a trained bias and scale, and norms are trained (LLaMA-Adapter v2).
    ``inputs`` numbers per token and layer are read by the adapter; where it is held in another precision than they
    are, a copy of ``copy_bytes`` for each is kept (PEFT). ``held_bytes`` is what each trained number takes.
    """

    trainable: int
    rank: int = 8
    targets: int = 2
    dropout: bool = True
    saved: int = 0
    scales: bool = False
    inputs: int = 0
    copy_bytes: float = 0.0
    held_bytes: float = 4.0


@dataclass(frozen=True)
class Serving:
    """Generation: what a server reserves, or what one batch of prompts needs.

    ``reserve_share`` is the share of the GPU's memory that an engine fills with key-value blocks (vLLM's
    gpu_memory_utilization), None for code that allocates as it goes.
    """

    context_tokens: int
    sequences: int = 1
    cache: Precision = Precision.BF16
    reserve_share: float | None = None
    batched_tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True)
class TrainingPlan:
    """One job. ``unknown`` are assumptions in place of what was not given: each widens the interval.

    ``weights`` is the precision parameters are held in, ``compute`` that of activations; ``gradient_bytes`` and
    ``master_bytes`` are per trained number (a 32-bit copy beside 16-bit weights: 4). ``logit_bytes`` is how much the
    loss holds per logit at its worst, 0 where a fused loss never holds them; ``buffer_bytes`` communication buffers;
    ``step_bytes`` what the optimizer's step holds besides states; ``gather_numbers`` how many sharded weights may be
    gathered at once beyond the layer at work; ``loads_whole``: all weights are on the GPU once beside this rank's
    part, before anything is sharded. ``ends`` is the precision of embedding and head where it is not the weights';
    ``quantised_head``: the head is quantised with the layers. ``beside_bytes`` are weights of other models that a rank
    holds and does not train: a teacher, a reference policy. ``engine_share``: of the GPU's memory that an engine which
    generates in the same process fills; its weights are split over ``engine_split`` GPUs. ``engine_sleeps``: it gives
    its memory back while the model is trained, and ``engine_alone``: what is trained is on the host meanwhile.
    ``workspace_bytes`` are those of matrix libraries; ``cached_loss``: blocks of the loss of other batches that the
    allocator keeps, as a multiple of the worst one's (sequences of varying length fit none of the cached ones).
    ``varying``: batches may be shorter than ``sequence``, which is only the most that is allowed.
    ``offload_activations``: what layers keep is moved to the host, but for the latest. ``joint_qkv``: values are a view
    of one product with queries and keys, which is kept whole with them. ``input_bytes``: how each number that a linear
    layer reads is kept, where that is not the compute precision (1 for FP8 products); 0 where it is. ``again``: parts
    that are thrown away and computed again whatever ``recompute`` says: "norms" (their outputs), "latent" (what latent
    attention expands), "activation" (of experts), "mlp" (of dense layers), "shared" and "experts" (the whole of them).
    ``backward_last``: all micro-batches of a step go forward before the first goes backward, with or without stages.
    """

    framework: str
    model: ModelShape
    micro_batch: int = 1
    sequence: int = 1024
    accumulation: int = 1
    parallel: Parallelism = field(default_factory=Parallelism)
    weights: Precision = Precision.FP32
    compute: Precision = Precision.FP32
    gradient_bytes: float = 4.0
    master_bytes: float = 0.0
    state_bytes_each: float = 4.0
    optimizer: OptimizerKind = OptimizerKind.ADAM
    foreach_step: bool = False
    preallocated_gradients: bool = False
    recompute: Recompute = Recompute.NONE
    recompute_layers: int = 0
    offload_activations: bool = False
    joint_qkv: bool = False
    input_bytes: float = 0.0
    again: frozenset[str] = frozenset()
    attention: Attention = Attention.FLASH
    style: Style = Style.FUSED
    dropout: bool = False
    softmax_fp32: bool = False
    logit_bytes: float = 10.0
    buffer_bytes: float = 0.0
    step_bytes: float = 0.0
    gather_numbers: float = 0.0
    ends: Precision | None = None
    quantised_head: bool = False
    beside_bytes: float = 0.0
    engine_share: float = 0.0
    engine_split: int = 1
    engine_sleeps: bool = False
    engine_alone: bool = False
    workspace_bytes: float = float(64 << 20)
    cached_loss: float = 0.0
    varying: bool = False
    target_sequence: int = 0
    adapter: Adapter | None = None
    serving: Serving | None = None
    loads_whole: bool = False
    backward_last: bool = False
    unknown: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.name in ("micro_batch", "sequence", "accumulation") and not 0 < getattr(self, item.name) < 1 << 30:
                raise PlanError(f"{item.name} must be above zero, not {getattr(self, item.name)}")

    @property
    def trains(self) -> bool:
        return self.serving is None

    @property
    def trained_share(self) -> float:
        """Share of the weights that has gradients and optimizer states."""
        if not self.trains:
            return 0.0
        return 1.0 if self.adapter is None else self.adapter.trainable / max(1, self.model.parameters())
