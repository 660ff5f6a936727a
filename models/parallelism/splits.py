"""Every split of a job that its framework can run: sizes that divide each other.

Rules are those that the frameworks check when they start: Megatron-LM's arguments.py and parallel_state.py,
torchtitan's ParallelDims, DeepSpeed's batch arithmetic.
"""

from collections.abc import Iterator

from kopt.core.workload.split import Framework, Split, TrainingJob
from kopt.core.workload.training_plan import Recompute, Sharding

_LARGEST_MICRO_BATCH = 16
_SHORTEST_PART = 2048
"""Tokens of a sequence below which dividing it further is not tried."""
_CHUNKS = (1, 2, 4, 5, 8)
"""Chunks of layers that a pipeline stage may hold; torchtitan's interleaved schedule makes two."""


def splits_of(job: TrainingJob) -> Iterator[Split]:
    """All splits of ``job`` that divide."""
    for tensor in _tensor_sizes(job):
        for context in _context_sizes(job, tensor):
            for pipeline, less in _pipeline_sizes(job):
                across = tensor * context * pipeline
                if job.gpus % across or job.global_batch % (job.gpus // across):
                    continue
                yield from _of_degrees(
                    job, Split(job.gpus // across, tensor, pipeline, context, outer_stages_less=less)
                )


def _of_degrees(job: TrainingJob, degrees: Split) -> Iterator[Split]:
    batch = job.global_batch // degrees.data
    for micro_batch in _powers_of_two(min(batch, _LARGEST_MICRO_BATCH)):
        if batch % micro_batch:
            continue
        count = batch // micro_batch
        for chunks in _chunks(job, degrees, count):
            for expert in _expert_sizes(job, degrees):
                for sharding in _shardings(job, degrees):
                    for recompute in _recomputes(job):
                        yield Split(
                            degrees.data,
                            degrees.tensor,
                            degrees.pipeline,
                            degrees.context,
                            expert,
                            chunks,
                            sharding,
                            recompute,
                            micro_batch,
                            degrees.outer_stages_less,
                        )


def _tensor_sizes(job: TrainingJob) -> Iterator[int]:
    """Within a node, as every layer waits for it."""
    if job.framework is Framework.DEEPSPEED:
        yield 1
        return
    model = job.model
    for size in _powers_of_two(min(job.gpus_per_node, job.gpus)):
        ffn = model.ffn if model.experts is None or model.experts.dense_layers else model.hidden
        if not (model.heads % size or model.kv_heads % size or model.hidden % size or ffn % size):
            yield size


def _context_sizes(job: TrainingJob, tensor: int) -> Iterator[int]:
    """Each rank takes two parts of the sequence, an early and a late one, so that all have as many scores to do."""
    if job.framework is Framework.DEEPSPEED or (tensor > 1 and job.sequence % tensor):
        yield from (1,) if job.sequence % tensor == 0 else ()
        return
    for size in _powers_of_two(max(1, job.sequence // _SHORTEST_PART)):
        if size == 1 or job.sequence % (2 * size * tensor) == 0:
            yield size


def _pipeline_sizes(job: TrainingJob) -> Iterator[tuple[int, bool]]:
    """Stages, and whether embedding and head count as a layer each."""
    layers = job.model.layers
    yield 1, False
    if job.framework is Framework.DEEPSPEED:
        return
    for size in range(2, min(layers, job.gpus) + 1):
        if layers % size == 0:
            yield size, False
        elif job.framework is not Framework.TORCHTITAN and (layers + 2) % size == 0 and (layers + 2) // size > 1:
            yield size, True


def _chunks(job: TrainingJob, degrees: Split, micro_batches: int) -> tuple[int, ...]:
    if degrees.pipeline == 1:
        return (1,)
    each = (job.model.layers + 2 * degrees.outer_stages_less) // degrees.pipeline
    interleaves = micro_batches % degrees.pipeline == 0 and not degrees.outer_stages_less
    sizes = _CHUNKS[:2] if job.framework is Framework.TORCHTITAN else _CHUNKS
    return tuple(size for size in sizes if size == 1 or (interleaves and each % size == 0))


def _expert_sizes(job: TrainingJob, degrees: Split) -> tuple[int, ...]:
    experts = job.model.experts
    if experts is None or job.framework in (Framework.DEEPSPEED, Framework.TORCHTITAN):
        return (1,)
    ranks = degrees.data * degrees.context * degrees.tensor
    return tuple(size for size in _powers_of_two(experts.count) if experts.count % size == 0 and ranks % size == 0)


def _shardings(job: TrainingJob, degrees: Split) -> tuple[Sharding, ...]:
    if degrees.data * degrees.context == 1:
        return (Sharding.NONE,)
    if job.framework is Framework.TORCHTITAN:
        return (Sharding.PARAMETERS,)
    if job.framework is Framework.DEEPSPEED:
        return (Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.PARAMETERS)
    # Megatron-FSDP gathers weights for every micro-batch, which a pipeline has many of.
    whole = degrees.pipeline == 1 and job.model.experts is None
    return (Sharding.OPTIMIZER, Sharding.PARAMETERS) if whole else (Sharding.OPTIMIZER,)


def _recomputes(job: TrainingJob) -> tuple[Recompute, ...]:
    if job.framework is Framework.TORCHTITAN:
        return (Recompute.NONE, Recompute.PRODUCTS, Recompute.FULL)
    return (Recompute.NONE, Recompute.FULL)


def _powers_of_two(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2
