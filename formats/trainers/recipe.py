"""What the trainers on top of PyTorch and transformers have in common: a recipe in their words becomes a plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kopt.core.reason import Reason
from kopt.core.workload.training_plan import (
    Adapter,
    Attention,
    ModelShape,
    Parallelism,
    PlanError,
    Precision,
    Recompute,
    Sharding,
    Style,
    TrainingPlan,
)
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.names import optimizer_kind

ZERO3_AT_ONCE = 1e9
"""DeepSpeed's defaults of sub_group_size and stage3_max_live_parameters."""
_CACHED_LOSS = 1.5
"""Where every batch has another length, none fits the blocks of those before: the allocator keeps the loss's tensors
of shorter batches beside those of the longest, at most about as much again for each halving of the length."""


@dataclass(frozen=True)
class Recipe:
    """Fine-tuning or pre-training in the words that trainers share.

    ``copies``: a framework such as DeepSpeed keeps 32-bit masters beside 16-bit weights. ``loss`` is bytes per logit
    at the worst moment. ``varying``: each batch is only as long as its longest sequence. ``step_numbers`` have their
    gradients in 32 bits while the optimizer steps. ``beside``: bytes of other models' weights, sharded as the model is;
    ``scored``: tokens of each sequence that the loss sees, 0: all.
    """

    framework: str
    model: ModelShape
    micro_batch: int
    sequence: int
    accumulation: int = 1
    weights: Precision = Precision.BF16
    compute: Precision = Precision.BF16
    copies: bool = False
    optimizer: str = "adamw"
    gpus: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    sharding: Sharding = Sharding.NONE
    shards: int = 0
    offload_optimizer: bool = False
    offload_parameters: bool = False
    checkpointing: bool = False
    checkpoint_products: bool = False
    offload_activations: bool = False
    virtual_stages: int = 1
    step_in_backward: bool = False
    flash: bool = True
    style: Style = Style.EAGER
    loss: float = 14.0
    adapter: Adapter | None = None
    buffers: float = 0.0
    loads_whole: bool = False
    state_bytes: float | None = None
    ends: Precision | None = None
    varying: bool = False
    step_numbers: float = 0.0
    gather_numbers: float = 0.0
    beside: float = 0.0
    scored: int = 0
    engine_share: float = 0.0
    engine_split: int = 1
    engine_sleeps: bool = False
    engine_alone: bool = False
    unknown: Sequence[Reason] = field(default_factory=tuple)

    def plan(self) -> TrainingPlan:
        """The plan of this recipe.

        Raises:
            PlanError: the GPUs do not divide into the parallel sizes.
        """
        across = self.tensor * self.pipeline * self.context
        if across < 1 or self.gpus < 1 or self.gpus % across:
            raise PlanError(
                f"{self.gpus} GPUs do not divide into tensor {self.tensor} x pipeline {self.pipeline} "
                f"x context {self.context}; give --world-size, a multiple of {across}"
            )
        data = self.gpus // across
        kind, foreach = optimizer_kind(self.optimizer)
        # An adapter's own numbers are held in a precision of their own, 32 bits mostly.
        trained = self.adapter.held_bytes if self.adapter else self.weights.bytes_each
        states = self.state_bytes or (4.0 if self.copies else trained)
        trained_numbers = self.adapter.trainable if self.adapter else self.model.parameters() / across
        buffers = self.buffers
        if self.weights is Precision.FP32 and self.compute is not Precision.FP32 and not self.sharding_weights:
            buffers += self.model.parameters() / across * self.compute.bytes_each  # autocast keeps its casts of weights
        if data > 1 and self.sharding is Sharding.NONE and not self.copies:
            buffers += trained_numbers * trained  # DistributedDataParallel's buckets hold the gradients once more
        return TrainingPlan(
            framework=self.framework,
            model=self.model,
            micro_batch=self.micro_batch,
            sequence=self.sequence,
            accumulation=max(1, self.accumulation),
            parallel=Parallelism(
                data=data,
                tensor=self.tensor,
                pipeline=self.pipeline,
                context=self.context,
                sharding=self.sharding if data * self.context > 1 else Sharding.NONE,
                shards=self.shards,
                virtual_stages=self.virtual_stages if self.pipeline > 1 else 1,
                sequence_parallel=self.tensor > 1,
                offload_optimizer=self.offload_optimizer or "paged" in self.optimizer.lower(),
                offload_parameters=self.offload_parameters,
            ),
            weights=self.weights,
            compute=self.compute,
            gradient_bytes=self._gradient_bytes(trained),
            master_bytes=4.0 if self.copies and not self.adapter else 0.0,
            state_bytes_each=states,
            optimizer=kind,
            foreach_step=foreach and not self.copies and not self.step_in_backward,
            recompute=self._recompute(),
            recompute_layers=1,
            offload_activations=self.offload_activations,
            attention=Attention.FLASH if self.flash else Attention.EAGER,
            style=self.style,
            logit_bytes=self.loss,
            buffer_bytes=buffers,
            step_bytes=0.0 if self.offload_optimizer else 4.0 * self.step_numbers,
            gather_numbers=self.gather_numbers,
            ends=self.ends,
            beside_bytes=self.beside / across / (data if self.sharding_weights else 1),
            target_sequence=self.scored,
            engine_share=self.engine_share,
            engine_split=self.engine_split,
            engine_sleeps=self.engine_sleeps,
            engine_alone=self.engine_alone,
            cached_loss=_CACHED_LOSS if self.varying and self.loss else 0.0,
            varying=self.varying,
            adapter=self.adapter,
            loads_whole=self.loads_whole,
            unknown=tuple(self.unknown),
        )

    def _recompute(self) -> Recompute:
        if self.checkpoint_products:
            return Recompute.PRODUCTS
        return Recompute.FULL if self.checkpointing else Recompute.NONE

    def _gradient_bytes(self, trained: float) -> float:
        """None outlives its layer where the optimizer steps inside the backward pass."""
        if self.step_in_backward:
            return 0.0
        return 2.0 if self.copies and not self.adapter else trained

    @property
    def sharding_weights(self) -> bool:
        return self.sharding is Sharding.PARAMETERS

    def with_deepspeed(
        self, stage: int, *, offload_optimizer: bool, offload_parameters: bool, bucket: float
    ) -> "Recipe":
        """The same under ZeRO ``stage`` (Rajbhandari et al. 2020), whose buckets hold ``bucket`` numbers together.

        They are made as large as they may become, however few numbers are trained. Where the optimizer steps inside the
        backward pass (LOMO), DeepSpeed has none of its own: no masters, no gradients that wait for a step.
        """
        stages = (Sharding.NONE, Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.PARAMETERS)
        if not 0 <= stage < len(stages):
            raise PlanError(f"ZeRO has stages 0 to 3, not {stage}")
        gather = ZERO3_AT_ONCE if stage == 3 else 0.0
        if self.step_in_backward:
            return replace(
                self, sharding=stages[stage], offload_parameters=offload_parameters, gather_numbers=gather, buffers=0.0
            )
        trained = self.adapter.trainable if self.adapter else self.model.parameters()
        own = trained / (max(1, self.gpus // self.pipeline) if stage else 1)
        return replace(
            self,
            copies=True,
            sharding=stages[stage],
            offload_optimizer=offload_optimizer,
            offload_parameters=offload_parameters,
            buffers=2.0 * bucket if stage > 1 else 0.0,
            # Gradients are cast to 32 bits for the step: a rank's part at once, or sub-groups of it in stage 3,
            # whose gathered weights stay until they are too many.
            step_numbers=min(own, ZERO3_AT_ONCE) if stage == 3 else own,
            gather_numbers=gather,
        )


def length(fields: Fields, *names: str) -> int:
    """The length of sequences, 2,048 tokens where none is given, which is noted."""
    result = fields.whole(*names, default=0)
    if not result:
        fields.assume("sequence", "the length of sequences is not given: 2048 tokens")
    return result or 2048
