"""What a script of transformers says in its own words: options behind settings, how weights and texts are loaded."""

from collections.abc import Sequence

import pytest

from kopt.core.workload.training_plan import Precision, Recompute, TrainingPlan
from kopt.formats.entrypoint import read_script, what_runs
from kopt.formats.entrypoint.script import ScriptFacts
from kopt.formats.trainers import read_plan
from kopt.models.sizing.estimate import settings_in

FIRE = """
import fire
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

def train(base_model="huggyllama/llama-7b", batch_size=128, micro_batch_size=4, cutoff_len=256, lora_r=16):
    model = AutoModelForCausalLM.from_pretrained(base_model, load_in_8bit=True, torch_dtype=torch.float16)
    def tokenize(text):
        return tokenizer(text, truncation=True, max_length=cutoff_len)
    model = prepare_model_for_int8_training(model)
    model = get_peft_model(model, LoraConfig(r=lora_r, target_modules=["q_proj", "v_proj"]))
    TrainingArguments(per_device_train_batch_size=micro_batch_size, fp16=True)

fire.Fire(train)
"""
ARGPARSE = """
parser.add_argument("--path", default="huggyllama/llama-7b")
parser.add_argument("--seqs", type=int, default=2)
MICRO = args.seqs
LENGTH = 512
model = LlamaForCausalLM.from_pretrained(args.path, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
tokenizer(text, truncation=True, max_length=LENGTH + 1)
model.gradient_checkpointing_enable()
TrainingArguments(per_device_train_batch_size=MICRO, bf16=is_new_gpu())
"""
FIELDS = """
@dataclass
class TrainArguments(transformers.TrainingArguments):
    model_max_length: int = field(default=512, metadata={"help": "…"})
    lora_r: int = 64
    use_lora: bool = False
TrainingArguments(per_device_train_batch_size=1)
"""


def plan_of(source: str, command: Sequence[str] = ("python", "own.py")) -> TrainingPlan:
    entrypoint = what_runs(list(command), lambda _: None)
    settings = settings_in(read_script(source), entrypoint.arguments)
    return read_plan(entrypoint, lambda _: None, trainer="hf", settings=settings)


def test_parameters_of_what_fire_calls_are_options() -> None:
    plan = plan_of(FIRE)
    assert (plan.model.name, plan.micro_batch, plan.sequence, plan.weights) == ("Llama-2-7B", 4, 256, Precision.INT8)
    assert plan.adapter is not None
    assert plan.adapter.rank == 16
    assert plan.recompute is Recompute.FULL, "prepare_model_for_int8_training turns it on"


def test_the_command_decides_what_is_bound_to_an_option() -> None:
    plan = plan_of(FIRE, ["python", "own.py", "--micro_batch_size", "32", "--cutoff_len=1024", "--base_model", "gpt2"])
    assert (plan.model.name, plan.micro_batch, plan.sequence) == ("gpt2", 32, 1024)
    assert plan_of(ARGPARSE, ["python", "own.py", "--seqs", "16"]).micro_batch == 16


def test_how_weights_and_texts_are_loaded_is_read() -> None:
    plan = plan_of(ARGPARSE)
    assert (plan.micro_batch, plan.sequence, plan.weights) == (2, 513, Precision.NF4)
    assert plan.recompute is Recompute.FULL
    assert plan_of(ARGPARSE.replace("model.gradient", "# ")).recompute is Recompute.NONE


def test_what_only_running_would_tell_is_said() -> None:
    assert any("the script computes bf16" in reason.message for reason in plan_of(ARGPARSE).unknown)
    assert not any("computes" in reason.message for reason in plan_of(FIRE).unknown)


@pytest.mark.parametrize("switch", [[], ["--use_lora", "True", "--lora_r", "8"]])
def test_lengths_are_taken_from_fields_and_ranks_are_not(switch: list[str]) -> None:
    plan = plan_of(FIELDS, ["python", "own.py", "--model_name_or_path", "gpt2", *switch])
    assert plan.sequence == 512
    assert (plan.adapter is not None) == bool(switch)


def test_an_adapter_that_is_switched_off_is_none() -> None:
    command = ["python", "own.py", "--model_name_or_path", "gpt2", "--use_lora", "False", "--lora_r", "8"]
    assert plan_of(FIELDS, command).adapter is None


def test_facts_travel_as_a_document() -> None:
    for source in (FIRE, ARGPARSE, FIELDS):
        facts = read_script(source)
        assert ScriptFacts.from_dict(facts.to_dict()) == facts


def test_a_file_that_the_command_names_is_read_beside_the_script() -> None:
    entrypoint = what_runs("python own.py recipe.yaml", lambda _: None)
    recipe = {"model_name_or_path": "gpt2", "output_dir": "out", "learning_rate": 1.0}
    settings = settings_in(read_script(FIELDS), entrypoint.arguments)
    assert settings
    plan = read_plan(entrypoint, {"recipe.yaml": recipe}.get, trainer="hf", settings=settings)
    assert (plan.model.name, plan.sequence) == ("gpt2", 512)


def test_an_adapter_alone_is_no_trainer() -> None:
    assert settings_in(read_script("LoraConfig(r=config.rank, target_modules=['q_proj'])"), ()) == {}
