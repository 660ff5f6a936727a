"""Dimensions of well-known models: the weights they make up are those the models' pages state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.core.workload.language_models import (
    UnknownModelError,
    find_language_model,
    language_models,
    published_parameters,
    shape_of_config,
)
from kopt.core.workload.size_in_name import shape_by_size
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


@pytest.mark.parametrize("written", ["", "our-own/model", "-" * 10_000, "gpt2-huge", "Foo-8x7B", "Foo-17B-16E"])
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


@pytest.mark.parametrize("name", ["xlm-roberta-base", "Qwen/Qwen2.5-VL-Instruct", "google/gemma-9-E2B"])
def test_what_only_sounds_like_a_known_model_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(UnknownModelError):
        find_language_model(name)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("output/Qwen3-8B/v0-2026/checkpoint-500", "Qwen3-8B"),
        ("/models/meta-llama/Llama-3.1-8B/", "Llama-3.1-8B"),
        ("checkpoints/Qwen2.5-7B/Foo-1.5B", "foo-1.5b"),
        ("/remote/llama_hf/7B", "Llama-2-7B"),
        ("./models/qwen2.5/7B", "Qwen2.5-7B"),
        ("/models/65B", "models-65b"),
    ],
)
def test_a_folder_on_the_way_may_name_the_model(path: str, name: str) -> None:
    assert find_language_model(path).name == name


@pytest.mark.parametrize(
    ("name", "weights", "active"),
    [
        ("someone/Qwen9-4B-Instruct", 4e9, 4e9),
        ("someone/Brand-New-13B", 13e9, 13e9),
        ("someone/tiny-350M", 0.35e9, 0.35e9),
        ("someone/Qwen9-60B-A6B", 60e9, 6e9),
        ("someone/Other-400B-A17B-FP8", 400e9, 17e9),
        ("someone/draft-0.6B-for-8B", 8e9, 8e9),
    ],
)
def test_a_size_in_the_name_of_an_unknown_model_gives_its_weights(name: str, weights: float, active: float) -> None:
    shape = find_language_model(name)
    assert shape.doubt > 1
    assert shape.parameters() == pytest.approx(weights, rel=0.08)
    assert shape.active_parameters() == pytest.approx(active, rel=0.1)


@pytest.mark.parametrize("name", sorted(language_models()))
def test_what_the_catalogue_has_is_not_in_doubt(name: str) -> None:
    assert find_language_model(name).doubt == 1.0


def test_a_size_beyond_any_model_is_none() -> None:
    for name in ("Foo-9000B", "Foo-0.001B", "Foo-4B-A8B", "step-500m-tokens"):
        shape = shape_by_size(name.lower(), language_models().values())
        assert shape is None or 5e6 <= shape.parameters() <= 5e12


@given(total=st.floats(0.1, 600), family=st.sampled_from(["qwen9", "llama-9", "gemma-9", "foo"]))
def test_a_larger_size_never_gives_fewer_weights(total: float, family: str) -> None:
    catalogue = language_models().values()
    small, large = (shape_by_size(f"{family}-{size:.2f}b", catalogue) for size in (total, 1.3 * total))
    assert small is not None
    assert large is not None
    assert small.parameters() < large.parameters()


@pytest.mark.parametrize(
    ("key", "family"),
    [("yi-1.5-13b-chat", "yi"), ("nemotron-mini-9b-instruct", ""), ("yahma-llama-9b", "llama"), ("yi-coder-11b", "yi")],
)
def test_a_family_is_any_word_that_is_no_size_or_style(key: str, family: str) -> None:
    catalogue = language_models().values()
    shape = shape_by_size(key, catalogue)
    assert shape is not None
    families = {other.name.lower() for other in catalogue if other.vocab == shape.vocab}
    assert any(name.startswith(family) for name in families)
    assert family or not any(name.startswith("minicpm") for name in families)
