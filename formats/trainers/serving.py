"""vLLM, SGLang and text-generation-inference: what a server holds."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kopt.core.workload.language_models import UnknownModelError
from kopt.core.workload.training_plan import (
    Attention,
    ModelShape,
    Parallelism,
    PlanError,
    Precision,
    Serving,
    Style,
    TrainingPlan,
)
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.models import model_of
from kopt.formats.trainers.names import precision, quantisation
from kopt.formats.trainers.trainer import PlanInputs, Trainer

_SAMPLER_BYTES = 36.0
"""Per score while sampling: 32-bit logits, sorted copy with 64-bit places and the sort's own copies of both,
probabilities and their logarithms."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_VLLM_SHARE, _SGLANG_SHARE, _TGI_SHARE = 0.9, 0.88, 0.95


def vllm_plan(settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None) -> TrainingPlan:
    """vLLM's engine arguments (https://docs.vllm.ai/en/latest/configuration/engine_args.html).

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    positional = [word for word in Fields(settings).positional() if word not in ("serve", "bench", "chat")]
    fields = Fields({"model": positional[0]} if positional else {}, settings)
    return _served(
        "vllm",
        fields,
        model_config,
        share=fields.real("gpu_memory_utilization", default=_VLLM_SHARE),
        parallel=_vllm_parallel(fields),
        context=fields.whole("max_model_len", default=0),
        sequences=fields.whole("max_num_seqs", default=256),
        batched=fields.whole("max_num_batched_tokens", default=8192),
        cache=fields.text("kv_cache_dtype"),
        quantised=fields.text("quantization", "q"),
    )


def sglang_plan(settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None) -> TrainingPlan:
    """SGLang's server arguments (https://docs.sglang.ai/advanced_features/server_arguments.html).

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    return _served(
        "sglang",
        fields,
        model_config,
        share=fields.real("mem_fraction_static", default=_SGLANG_SHARE),
        parallel=_sglang_parallel(fields),
        context=fields.whole("context_length", default=0),
        sequences=fields.whole("max_running_requests", default=256),
        batched=fields.whole("chunked_prefill_size", default=8192),
        cache=fields.text("kv_cache_dtype"),
        quantised=fields.text("quantization"),
    )


def tgi_plan(settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None) -> TrainingPlan:
    """text-generation-launcher's arguments (https://huggingface.co/docs/text-generation-inference/reference/launcher).

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    return _served(
        "tgi",
        fields,
        model_config,
        share=fields.real("cuda_memory_fraction", default=1.0) * _TGI_SHARE,
        parallel=_tgi_parallel(fields),
        context=fields.whole("max_total_tokens", default=0),
        sequences=fields.whole("max_batch_size", "max_concurrent_requests", default=128),
        batched=fields.whole("max_batch_prefill_tokens", default=4096),
        cache=fields.text("kv_cache_dtype"),
        quantised=fields.text("quantize"),
    )


def _served(
    framework: str,
    fields: Fields,
    config: Mapping[str, Any] | None,
    *,
    share: float,
    parallel: Parallelism,
    context: int,
    sequences: int,
    batched: int,
    cache: str,
    quantised: str,
) -> TrainingPlan:
    model = _model(fields, config)
    held = quantisation(quantised, fields.text("model", "model_path", "model_id"))
    compute = precision(fields.text("dtype"), Precision.BF16)
    if not context:
        context = 8192
        fields.assume("context", "the longest context is not given: 8192 tokens; the cache fills its share anyway")
    return TrainingPlan(
        framework=framework,
        model=model,
        parallel=parallel,
        weights=held or compute,
        compute=compute,
        attention=Attention.FLASH,
        style=Style.FUSED,
        logit_bytes=_SAMPLER_BYTES,
        serving=Serving(
            context_tokens=context,
            sequences=sequences,
            cache=precision(cache, compute),
            reserve_share=share,
            batched_tokens=min(batched, context * sequences) or 1,
        ),
        unknown=tuple(fields.unknown),
    )


def _model(fields: Fields, config: Mapping[str, Any] | None) -> ModelShape:
    """The model that is served; of a name that nobody knows, a small stand-in: the engine takes its share anyway.

    Raises:
        PlanError: none is named, or one of pictures that no engine of language models holds.
    """
    name = fields.text("model", "model_path", "model_id")
    if re.search(r"diffus", name.rpartition("/")[2], re.IGNORECASE):
        raise PlanError(f"{name[:80]!r} makes pictures; no formula here follows it, so make a dry run (kopt profile)")
    try:
        return model_of(fields, "model", "model_path", "model_id", config=config)
    except UnknownModelError:
        if not _NAME.fullmatch(name):
            raise
        fields.assume(
            "model",
            f"the dimensions of {name[:80]!r} are not known: the engine takes its share of the GPU, or does not start "
            "where the weights need more; give its config.json to know which",
        )
        return ModelShape(name, layers=1, hidden=1024, heads=8, kv_heads=1, head_dim=128, ffn=4096, vocab=32000)


def _vllm_parallel(fields: Fields) -> Parallelism:
    """Experts are spread over all ranks of a stage where they are not split like the rest of the layer."""
    data = fields.whole("data_parallel_size", "dp", default=1)
    tensor = fields.whole("tensor_parallel_size", "tp", default=1)
    pipeline = fields.whole("pipeline_parallel_size", "pp", default=1)
    if not fields.flag("enable_expert_parallel", "ep"):
        return Parallelism(data=data, tensor=tensor, pipeline=pipeline)
    return Parallelism(data=data, tensor=tensor, pipeline=pipeline, expert=max(1, data * tensor), expert_tensor=1)


def _sglang_parallel(fields: Fields) -> Parallelism:
    tensor = fields.whole("tensor_parallel_size", "tp_size", "tp", default=1)
    experts = max(1, fields.whole("expert_parallel_size", "ep_size", "ep", default=1))
    # With attention split by requests, its replicas lie on the ranks of the tensor group.
    data = fields.whole("data_parallel_size", "dp_size", "dp", default=1)
    return Parallelism(
        data=1 if fields.flag("enable_dp_attention") else data,
        tensor=tensor,
        expert=experts,
        expert_tensor=max(1, tensor // experts) if experts > 1 else 0,
        pipeline=fields.whole("pipeline_parallel_size", "pp_size", default=1),
    )


def _tgi_parallel(fields: Fields) -> Parallelism:
    return Parallelism(tensor=fields.whole("num_shard", default=1))


def generation_plan(
    settings: Mapping[str, Any], *, model_config: Mapping[str, Any] | None = None, gpus: int = 1
) -> TrainingPlan:
    """Generation with transformers: one batch of prompts, a cache that grows with it, layers spread over ``gpus``.

    Takes ``model``, ``prompt_tokens``, ``new_tokens``, ``batch_size``, ``dtype`` and ``quantization``.

    Raises:
        PlanError: the model is not known, or a value that cannot be.
    """
    fields = Fields(settings)
    model = model_of(fields, config=model_config)
    held = quantisation(fields.text("quantization"), fields.text("model"))
    if held is Precision.FP8:
        model = replace(model, tied=False)  # loaded apart from the embedding it was tied to
    compute = precision(fields.text("dtype"), Precision.BF16)
    prompt = fields.whole("prompt_tokens", default=1)
    return TrainingPlan(
        framework="transformers",
        model=model,
        parallel=Parallelism(pipeline=gpus),
        weights=held or compute,
        compute=compute,
        style=Style.EAGER,
        logit_bytes=0.0 if fields.flag("last_logits_only", default=True) else compute.bytes_each + 4.0,
        serving=Serving(
            context_tokens=prompt + fields.whole("new_tokens", default=1),
            sequences=fields.whole("batch_size", default=1),
            cache=compute,
            prompt_tokens=prompt,
        ),
        unknown=tuple(fields.unknown),
    )


def _vllm(inputs: PlanInputs) -> TrainingPlan:
    return vllm_plan(inputs.settings, model_config=inputs.model_config())


def _sglang(inputs: PlanInputs) -> TrainingPlan:
    return sglang_plan(inputs.settings, model_config=inputs.model_config())


def _tgi(inputs: PlanInputs) -> TrainingPlan:
    return tgi_plan(inputs.settings, model_config=inputs.model_config())


VLLM = Trainer(
    "vllm",
    _vllm,
    commands=("vllm",),
    modules=("vllm.",),
    config_options=("--config",),
    processes=lambda inputs: _vllm_parallel(Fields(inputs.settings)).world,
)
SGLANG = Trainer(
    "sglang",
    _sglang,
    commands=("sglang",),
    modules=("sglang.",),
    config_options=("--config",),
    processes=lambda inputs: _sglang_parallel(Fields(inputs.settings)).world,
)


def _tgi_processes(inputs: PlanInputs) -> int | None:
    """``--num-shard``; without it one where ``--sharded false`` says so, else one for each GPU."""
    fields = Fields(inputs.settings)
    all_gpus = not fields.has("num_shard") and fields.flag("sharded", default=True)
    return None if all_gpus else _tgi_parallel(fields).world


TGI = Trainer(
    "tgi",
    _tgi,
    commands=("text-generation-launcher", "text-generation-server"),
    modules=("text_generation_server",),
    processes=_tgi_processes,
)
