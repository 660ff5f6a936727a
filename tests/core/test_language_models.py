"""Dimensions of well-known models: the weights they make up are those the models' pages state."""

import pytest

from kopt.core.workload.language_models import (
    UnknownModelError,
    find_language_model,
    language_models,
    published_parameters,
    shape_of_config,
)
from kopt.core.workload.training_plan import PlanError


@pytest.mark.parametrize("name", sorted(language_models()))
def test_dimensions_make_up_the_published_number_of_weights(name: str) -> None:
    assert language_models()[name].parameters() == pytest.approx(published_parameters()[name], rel=0.006)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3-8B", "Llama-3-8B"),
        ("./models/Qwen2.5-7B-Instruct-GPTQ-Int4/", "Qwen2.5-7B"),
        ("Llama 2 7 B", "Llama-2-7B"),
        ("qwen-1_8b-chat", "Qwen-1.8B"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
        ("gpt2", "gpt2"),
    ],
)
def test_names_are_found_as_people_write_them(written: str, name: str) -> None:
    assert find_language_model(written).name == name


@pytest.mark.parametrize("written", ["", "our-own/model", "Llama-3.1-9B", "-" * 10_000, "gpt2-huge"])
def test_an_unknown_name_is_refused_with_what_to_give(written: str) -> None:
    with pytest.raises(UnknownModelError, match=r"config\.json"):
        find_language_model(written)


def test_a_model_s_own_configuration_gives_its_dimensions() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    }
    assert shape_of_config(config).parameters() == find_language_model("Llama-3.1-8B").parameters()
    gpt2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    assert shape_of_config(gpt2).parameters() == find_language_model("gpt2").parameters()


@pytest.mark.parametrize(
    "change", [{"hidden_size": None}, {"hidden_size": "4096"}, {"num_hidden_layers": -1}, {"vocab_size": 0}]
)
def test_a_configuration_without_a_dimension_is_refused(change: dict[str, object]) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    with pytest.raises(PlanError):
        shape_of_config(config | change)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("NousResearch/Hermes-3-Llama-3.1-8B", "Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen2.5-32B"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen2.5-7B"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "Llama-3.1-70B"),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "Llama-3.1-8B"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "Mistral-7B"),
    ],
)
def test_copies_have_the_dimensions_of_their_base(name: str, base: str) -> None:
    assert find_language_model(name) is language_models()[base]


@pytest.mark.parametrize("name", ["xlm-roberta-base", "Qwen/Qwen2.5-VL-7B-Instruct", "meta-llama/Llama-3.2-11B-Vision"])
def test_what_only_sounds_like_a_known_model_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(UnknownModelError):
        find_language_model(name)
