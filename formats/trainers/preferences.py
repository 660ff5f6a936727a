"""What TRL and those who build on it hold beside the model when they learn from preferences, rewards or a teacher.

DPO (Rafailov et al. 2023), KTO, ORPO, SimPO, GRPO (Shao et al. 2024), distillation: which other models stay on the GPU,
how many sequences one example makes, and what the loss holds of their logits.
"""

from dataclasses import dataclass, replace

from kopt.core.workload.language_models import find_language_model
from kopt.core.workload.training_plan import PlanError
from kopt.formats.trainers.fields import Fields
from kopt.formats.trainers.recipe import Recipe

LOG_PROBABILITIES = 14.0
"""Per score: 16-bit logits, their 32-bit copy that is also kept, and in the backward pass the gradients of the
log-sum-exp and of the scores that were taken."""
_DIVERGENCE = 40.0
"""The student's and the teacher's logits in 16 and 32 bits, both log-softmaxes, their mixture's, and two divergences
with their products."""
_PROMPT, _COMPLETION, _ENGINE_SHARE = 512, 256, 0.3
"""TRL's defaults: tokens of a prompt and of a completion, and vLLM's share of the GPU where it runs in the trainer."""


@dataclass(frozen=True)
class Method:
    """``sequences`` that one example makes; whether a frozen copy of the model, or a teacher, is held beside it.

    ``scores``: bytes per logit, 0 where a head of one number takes the vocabulary's place.
    """

    sequences: int = 2
    reference: bool = False
    teacher: bool = False
    generates: bool = False
    scores: float = LOG_PROBABILITIES


METHODS = {
    "dpo": Method(reference=True),
    "ipo": Method(reference=True),
    "kto": Method(reference=True),
    "bco": Method(reference=True),
    "orpo": Method(),
    "cpo": Method(),
    "simpo": Method(),
    "rm": Method(scores=0.0),
    "reward": Method(scores=0.0),
    "prm": Method(sequences=1, scores=0.0),
    "grpo": Method(sequences=1, reference=True, generates=True),
    "rloo": Method(sequences=1, reference=True, generates=True),
    "online_dpo": Method(reference=True, generates=True),
    "gkd": Method(sequences=1, teacher=True, scores=_DIVERGENCE),
    # ms-swift's tasks with a small head: of a pair of texts, or of one.
    "embedding": Method(scores=0.0),
    "reranker": Method(scores=0.0),
    "seq_cls": Method(sequences=1, scores=0.0),
}
_UNSUPPORTED = ("ppo", "nash_md", "xpo")


def method_of(fields: Fields) -> Method | None:
    """The method that arguments name (`trl dpo`, LLaMA-Factory's stage, axolotl's rl, ms-swift's rlhf_type).

    Raises:
        PlanError: a method with several models in training, which these formulas do not follow.
    """
    named = fields.positional()[:1]
    options = ("rl", "rlhf_type", "stage", "trl_method", "task_type")
    named += [fields.text(option) for option in options]
    for name in (item.strip().lower() for item in named):
        if name in _UNSUPPORTED:
            raise PlanError(f"{name} trains more than one model at once, which no formula here follows; run the script")
        if name in METHODS:
            return METHODS[name]
    return None


def with_method(recipe: Recipe, fields: Fields) -> Recipe:
    """``recipe`` with what its method needs beside plain fine-tuning. Raises PlanError."""
    method = method_of(fields)
    if method is None:
        return recipe
    recipe = replace(
        recipe,
        micro_batch=recipe.micro_batch * method.sequences,
        loss=min(recipe.loss, method.scores) if recipe.loss < 1 else method.scores,
        beside=_reference_bytes(recipe, fields, method) + _teacher_bytes(recipe, fields, method),
    )
    return _generating(recipe, fields) if method.generates else recipe


def _reference_bytes(recipe: Recipe, fields: Fields, method: Method) -> float:
    """A frozen copy of the model: adapters are switched off instead, and some settings do without."""
    free = fields.flag("precompute_ref_log_probs") or fields.flag("reference_free")
    if not method.reference or recipe.adapter is not None or free:
        return 0.0
    if method.generates and method.sequences == 1 and fields.real("beta", default=0.0) == 0.0:
        return 0.0  # without a divergence to weigh, none is loaded
    return recipe.model.parameters() * recipe.weights.bytes_each


def _teacher_bytes(recipe: Recipe, fields: Fields, method: Method) -> float:
    if not method.teacher:
        return 0.0
    named = fields.text("teacher_model_name_or_path", "teacher_model")
    if not named:
        fields.assume("teacher_model_name_or_path", "the teacher is not named: taken to be as large as the student")
    teacher = find_language_model(named) if named else recipe.model
    return teacher.parameters() * 2.0


def _generating(recipe: Recipe, fields: Fields) -> Recipe:
    """Prompt and completion together are the sequence, of which the completion is scored; who generates, and where."""
    completion = fields.whole("max_completion_length", "max_new_tokens", default=_COMPLETION)
    prompt = fields.whole("max_prompt_length", default=_PROMPT)
    fields.unknown[:] = [reason for reason in fields.unknown if reason.numbers.get("setting") != "sequence"]
    if not fields.has("max_prompt_length"):
        fields.assume("max_prompt_length", f"the length of prompts is not given: {prompt} tokens")
    inside = fields.flag("use_vllm") and fields.text("vllm_mode", default="server") == "colocate"
    share = fields.real("vllm_gpu_memory_utilization", default=_ENGINE_SHARE) if inside else 0.0
    if not 0 <= share <= 1:
        raise PlanError(f"vllm_gpu_memory_utilization must be between 0 and 1, not {share:g}")
    return replace(
        recipe,
        sequence=max(1, prompt + completion),
        scored=completion,
        engine_share=share,
        engine_sleeps=fields.flag("vllm_enable_sleep_mode"),
        engine_split=max(1, fields.whole("vllm_tensor_parallel_size", default=1)),
    )
