"""What a script of transformers says in its own words: options behind settings, how weights and texts are loaded."""

import itertools
from collections.abc import Sequence

import pytest

from kopt.core.workload.training_plan import PlanError, Precision, Recompute, TrainingPlan
from kopt.formats.entrypoint import read_script, what_runs
from kopt.formats.entrypoint.script import ScriptFacts
from kopt.formats.trainers import read_plan
from kopt.models.sizing.script_settings import settings_in

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
parser.add_argument("-s", "--seqs", type=int, default=2)
parser.add_argument("--rank", type=int, default=8)
parser.add_argument("--four", action="store_true")
parser.add_argument("--save", action="store_true")
args = parser.parse_args()
MICRO = args.seqs
LENGTH = 512
model = LlamaForCausalLM.from_pretrained(args.path, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
model = get_peft_model(model, LoraConfig(r=args.rank))
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
(args,) = transformers.HfArgumentParser(TrainArguments).parse_args_into_dataclasses()
"""
LOADS = "model = LlamaForCausalLM.from_pretrained(args.path, quantization_config=BitsAndBytesConfig(load_in_4bit=True))"
CHECKPOINTS = "model.gradient_checkpointing_enable()"
TRAINS = "Trainer(model=model)\n"


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


def loaded(changed: str, command: Sequence[str] = ("python", "own.py")) -> TrainingPlan:
    assert LOADS in ARGPARSE
    return plan_of(ARGPARSE.replace(LOADS, changed) + TRAINS, command)


@pytest.mark.parametrize(
    "calls",
    [
        f"if training_args.gradient_checkpointing:\n    {CHECKPOINTS}",
        f"if args.save:\n    {CHECKPOINTS}",
        f"if torch.cuda.device_count() > 1:\n    {CHECKPOINTS}",
        f"def never():\n    {CHECKPOINTS}",
        "def never():\n    prepare_model_for_kbit_training(model)",
        f"is_new() and {CHECKPOINTS}",
        f"class Own:\n    def fit(self):\n        {CHECKPOINTS}",
        f"def main():\n    if args.save:\n        return\n    {CHECKPOINTS}\nmain()",
        "prepare_model_for_kbit_training(model, use_gradient_checkpointing=is_new())",
        f"KEEP = False\nif KEEP:\n    {CHECKPOINTS}",
        f"KEEP = True\nfor KEEP in kept:\n    pass\nif KEEP:\n    {CHECKPOINTS}",
        "prepare_model_for_kbit_training(model, use_gradient_checkpointing=args.save)",
    ],
)
def test_what_may_not_run_is_not_taken_as_done(calls: str) -> None:
    assert plan_of(ARGPARSE.replace(CHECKPOINTS, calls)).recompute is Recompute.NONE


@pytest.mark.parametrize(
    "calls",
    [
        f"def main():\n    {CHECKPOINTS}\nif __name__ == '__main__':\n    main()",
        f"def inner():\n    with ctx():\n        {CHECKPOINTS}\ndef main():\n    inner()\nfire.Fire(main)",
        "prepare_model_for_kbit_training(model)",
        f"KEEP = True\nif KEEP is True:\n    {CHECKPOINTS}",
    ],
)
def test_what_surely_runs_is(calls: str) -> None:
    assert plan_of(ARGPARSE.replace(CHECKPOINTS, calls)).recompute is Recompute.FULL


def test_a_condition_is_what_its_option_says() -> None:
    source = ARGPARSE.replace(CHECKPOINTS, f"if args.save:\n    {CHECKPOINTS}")
    assert plan_of(source, ["python", "own.py", "--save"]).recompute is Recompute.FULL


@pytest.mark.parametrize(
    "calls",
    [
        "bnb = None\nif args.four:\n    bnb = BitsAndBytesConfig(load_in_4bit=True)\n"
        "model = LlamaForCausalLM.from_pretrained(args.path, quantization_config=bnb)",
        "model = LlamaForCausalLM.from_pretrained(args.path)\n"
        "teacher = LlamaForCausalLM.from_pretrained(args.path, load_in_4bit=True, torch_dtype=torch.float16)",
        "def get(): return AutoModel.from_pretrained(args.path)\nmodel = get()\n"
        "ref = AutoModel.from_pretrained(args.path, load_in_8bit=True)",
        "if is_new():\n    model = AutoModel.from_pretrained(args.path, load_in_4bit=True)\n"
        "else:\n    model = AutoModel.from_pretrained(args.path)",
        "model = build()\nteacher = AutoModel.from_pretrained('huggyllama/llama-7b', load_in_4bit=True)",
    ],
)
def test_another_models_bits_are_not_those_of_the_trained(calls: str) -> None:
    plan = loaded(calls)
    assert not plan.weights.quantised
    assert plan.weights is not Precision.FP16


def test_bits_behind_an_option_are_taken_where_it_is_given() -> None:
    calls = (
        "if args.four:\n    bnb = BitsAndBytesConfig(load_in_4bit=True)\n"
        "model = LlamaForCausalLM.from_pretrained(args.path, quantization_config=bnb)"
    )
    assert loaded(calls, ["python", "own.py", "--four"]).weights is Precision.NF4
    assert not loaded(calls).weights.quantised


def test_bits_without_adapters_are_a_contradiction() -> None:
    with pytest.raises(PlanError, match="adapters alone; give"):
        plan_of(ARGPARSE.replace("model = get_peft_model(model, LoraConfig(r=args.rank))", ""))


def test_adapters_behind_an_option_that_is_off_are_none() -> None:
    wraps = "model = get_peft_model(model, LoraConfig(r=args.rank))"
    source = ARGPARSE.replace(LOADS, "model = AutoModel.from_pretrained(args.path)")
    source = source.replace(wraps, f"if args.save:\n    {wraps}")
    assert plan_of(source).adapter is None
    assert plan_of(source, ["python", "own.py", "--save"]).adapter is not None


@pytest.mark.parametrize(
    ("cuts", "length", "computed"),
    [
        (
            "tokenizer(a, truncation=1, max_length=64)\ntokenizer(b, truncation=1, max_length=longest())",
            1024,
            True,
        ),
        ("tokenizer(a, truncation=1, max_length=2048)\ntokenizer(b, truncation=True)", 2048, True),
        ("tokenizer(a, truncation=1, max_length=64)\ntokenizer(b, truncation=False)", 64, False),
        (
            "tokenizer(a, truncation=1, max_length=args.rank)\ntokenizer(a, truncation=1, max_length=64)",
            64,
            False,
        ),
        (
            "tokenizer(a, truncation=1, max_length=args.rank)\ntokenizer(b, truncation=1, max_length=args.seqs)",
            8,
            0,
        ),
    ],
)
def test_lengths_of_several_calls(cuts: str, length: int, computed: bool) -> None:
    plan = plan_of(ARGPARSE.replace("tokenizer(text, truncation=True, max_length=LENGTH + 1)", cuts))
    assert plan.sequence == length
    assert any("computes bf16, max_length" in each.message for each in plan.unknown) == bool(computed)


def test_every_name_of_an_option_is_read() -> None:
    for name in ("-s", "--seqs", "--seq"):
        assert plan_of(ARGPARSE, ["python", "own.py", name, "16"]).micro_batch == 16


def test_copies_that_change_are_computed() -> None:
    plan = plan_of(ARGPARSE.replace("LENGTH = 512", "LENGTH = 512\ndef grow():\n    global MICRO\n    MICRO = 64"))
    assert any("per_device_train_batch_size" in each.message for each in plan.unknown)


def test_only_what_was_parsed_is_an_option() -> None:
    plan = plan_of(ARGPARSE.replace("MICRO = args.seqs", "MICRO = config.seqs"))
    assert any("per_device_train_batch_size" in each.message for each in plan.unknown)
    assert plan.micro_batch == 8


def test_the_first_of_what_was_parsed_is_an_option() -> None:
    fields = FIELDS.replace("(args,) = ", "args = ").replace("dataclasses()", "dataclasses()[0]")
    source = f"{fields}TrainingArguments(per_device_train_batch_size=args.lora_r)\n"
    command = ["python", "own.py", "--model_name_or_path", "gpt2", "--lora_r", "4"]
    assert plan_of(source.replace("(per_device_train_batch_size=1)", "(bf16=True)"), command).micro_batch == 4


def test_parameters_by_position_alone_are_options() -> None:
    assert plan_of(FIRE.replace("cutoff_len=256, lora_r", "cutoff_len=256, /, *, lora_r")).sequence == 256


def test_classes_of_options_that_do_not_train_are_not_read() -> None:
    other = "class GenerationArguments:\n    model_max_length: int = 64\nHfArgumentParser(GenerationArguments)\n"
    command = ["python", "own.py", "--model_name_or_path", "gpt2"]
    assert plan_of(FIELDS + other, command).sequence == 512
    unused = "class DataArguments:\n    model_max_length: int = 64\n"
    assert plan_of(FIELDS + unused, command).sequence == 512


def test_what_is_handed_on_as_it_was_parsed_is_an_option() -> None:
    handed = ARGPARSE.replace("args = parser.parse_args()", "").replace("MICRO", "1", 1).replace("MICRO", "args.seqs")
    handed = handed.replace("1 = args.seqs\n", "")
    body = "".join(f"    {line}\n" for line in handed.splitlines() if not line.startswith("parser"))
    parser = "".join(f"{line}\n" for line in handed.splitlines() if line.startswith("parser"))
    plan = plan_of(f"{parser}def main(args):\n{body}main(parser.parse_args())\n", ["python", "own.py", "--seqs", "16"])
    assert plan.micro_batch == 16
    assert plan.recompute is Recompute.FULL


def test_a_name_that_is_set_over_and_over_is_computed() -> None:
    loads = "model = get(model, AutoModel.from_pretrained('gpt2', quantization_config=bnb))\n" * 300
    settings = "bnb = BitsAndBytesConfig(load_in_4bit=True)\n" * 300
    own = f"def get(m, n):\n    return get(m, n)\n{settings}{loads}{TRAINS}TrainingArguments(bf16=True)\n"
    facts = read_script(own)
    assert "load_in_4bit" not in facts.loading
    assert "load_in_4bit" in facts.computed


WHOLE = """
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=4)
parser.add_argument("-v", "--verbose", action="store_true")
parser.add_argument("-n", action="count")
parser.add_argument("-r", "--rank", type=int, nargs="?", const=64, default=8)
parser.add_argument("--no-ckpt", dest="ckpt", action="store_false")
parser.add_argument("--four", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
model = LlamaForCausalLM.from_pretrained("gpt2", load_in_4bit=args.four)
model = get_peft_model(model, LoraConfig(r=args.rank))
TrainingArguments(per_device_train_batch_size=args.batch_size, gradient_checkpointing=args.ckpt, max_length=64)
"""
CLICK = """
import click
@click.command()
@click.option("-b", "--batch-size", default=4)
@click.option("--length", "cutoff", default=128)
@click.option("--ckpt/--no-ckpt", " /-C", default=True)
@click.option("-v", "--verbose", count=True)
def main(batch_size, cutoff, ckpt, verbose):
    model = LlamaForCausalLM.from_pretrained("gpt2")
    TrainingArguments(per_device_train_batch_size=batch_size, gradient_checkpointing=ckpt, max_length=cutoff)
main()
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        *itertools.product([WHOLE, CLICK], ["-b8", "-b 8", "--batch-size=8", "-b4 -b8", "-vb8", "-vvb8", "-v -b8"]),
        *((WHOLE, words) for words in ("-nb8", "-nnvb8", "-b=8", "-vb=8", "--batch_size 8", "--batch 8")),
    ],
)
def test_a_short_option_and_its_value_may_be_one_word(source: str, words: str) -> None:
    assert plan_of(source).micro_batch == 4
    assert plan_of(source, ["python", "own.py", *words.split()]).micro_batch == 8


def test_words_of_switches_and_optional_values_stand_for_what_the_parser_stores() -> None:
    def plan(words: str, source: str = WHOLE) -> TrainingPlan:
        return plan_of(source, ["python", "own.py", *words.split()])

    ranks = [result.adapter.rank for words in ("-v", "-r", "-r16") if (result := plan(words)).adapter]
    assert ranks == [8, 64, 16]
    assert (plan("-v").recompute, plan("--no-ckpt").recompute) == (Recompute.FULL, Recompute.NONE)
    assert plan("--no-ckpt data.json").recompute is Recompute.NONE, "a word behind a switch belongs to no option"
    assert (plan("").weights, plan("--no-four").weights) == (Precision.NF4, plan("--no-fo").weights)
    assert plan("--no-four").weights is not Precision.NF4
    assert (plan("", CLICK).sequence, plan("--length 64", CLICK).sequence) == (128, 64)
    assert (plan("", CLICK).recompute, plan("--no-ckpt", CLICK).recompute) == (Recompute.FULL, Recompute.NONE)
    assert (plan("-C", CLICK).recompute, plan("-vC", CLICK).recompute) == (Recompute.NONE, Recompute.NONE)


def test_options_are_click_s_where_it_is_imported_and_inside_their_function_alone() -> None:
    assert read_script(CLICK.replace("import click", "import other as click")).bound == {}
    elsewhere = CLICK + "def other(batch_size):\n    TrainingArguments(gradient_accumulation_steps=batch_size)\n"
    bound = read_script(elsewhere).bound
    assert bound["per_device_train_batch_size"] == "batch_size"
    assert "gradient_accumulation_steps" not in bound


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-B8", "no option -B8"),
        ("--bach-size 8", "no option --bach_size: is --batch_size meant?"),
        ("--bacth-size=8", "no option --bacth_size: is --batch_size meant?"),
        ("-lr1e-4", "no option --lr1e_4"),
    ],
)
def test_words_that_are_no_option_are_named_with_the_nearest(words: str, said: str) -> None:
    def notes(source: str, words: str) -> str:
        plan = plan_of(source, ["python", "own.py", *words.split()])
        return " ".join(reason.message for reason in plan.unknown if "no option" in reason.message)

    assert said in notes(WHOLE, words)
    assert notes(WHOLE, "-b8 --verb --no-ckpt") == ""
    assert "no option --bach_size: is --batch_size meant?" in notes(CLICK, "--bach-size 8")
    assert notes(CLICK, "-b8 --verbose --no-ckpt -C --length 64") == ""
    for shared in ("@common_options\n@click.option", "@click.option(*SHARED)\n@click.option"):
        assert notes(CLICK.replace("@click.option", shared, 1), "--bach-size 8") == ""
    assert notes(CLICK.replace(".command()", ".command(context_settings=OPEN)"), "--bach-size 8") == ""
    # Where others may add options, or they are passed on, a word of letters alone may be one of these.
    for open_parser in (
        WHOLE.replace("args = ", "parser = add_more(parser)\nargs = "),
        WHOLE.replace("args = parser.parse_args()", "args, rest = parser.parse_known_args()"),
        WHOLE.replace("ArgumentParser()", "ArgumentParser(parents=[others])"),
        WHOLE.replace("ArgumentParser", "OtherParser"),
    ):
        assert notes(open_parser, "--local_rank 0 --bach-size 8") == ""
        assert "no option -B8" in notes(open_parser, "-B8"), "but no long option has a digit behind one letter"


def test_words_that_the_parser_would_refuse_are_refused() -> None:
    with pytest.raises(PlanError, match="must be a whole number, not 'atch8'"):
        plan_of(WHOLE, ["python", "own.py", "-batch8"])


def test_facts_of_options_survive_their_way_out_of_the_confined_process() -> None:
    facts = read_script(WHOLE)
    assert facts.complete
    assert (facts.stored["no_ckpt"], facts.stored["no_four"], facts.stored["r"]) == (False, False, 64)
    assert ScriptFacts.from_dict(facts.to_dict()) == facts
