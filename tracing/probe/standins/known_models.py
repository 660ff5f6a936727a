"""Configurations of often used models, so that ``from_pretrained`` needs no network: the published ``config.json``.

Only what shapes depend on. Sources: the ``config.json`` beside each model's weights.
"""

from __future__ import annotations

from typing import Any


def _llama(hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        **more,
    }


def _qwen(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, tied: bool
) -> dict[str, Any]:
    name = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    more = {"head_dim": 128} if kind == "qwen3" else {}
    shape = _llama(hidden, inner, layers, heads, kv, vocab, tie_word_embeddings=tied, max_position_embeddings=32768)
    return {**shape, **more, "model_type": kind, "architectures": [name]}


def _gpt2(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": 50257,
        "n_positions": 1024,
    }


def _bert(hidden: int, layers: int, heads: int, vocabulary: int, kind: str = "bert", **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        **more,
    }


def _t5(hidden: int, inner: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": hidden,
        "d_ff": inner,
        "num_layers": layers,
        "num_heads": heads,
        "d_kv": 64,
        "vocab_size": 32128,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        **more,
    }


def _vit(hidden: int, layers: int, heads: int, patch: int = 16, size: int = 224) -> dict[str, Any]:
    return {
        "model_type": "vit",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "patch_size": patch,
        "image_size": size,
    }


def _opt(hidden: int, layers: int, heads: int, inner: int, projected: int | None = None) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "hidden_size": hidden,
        "ffn_dim": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": 50272,
        "word_embed_proj_dim": projected or hidden,
    }


def _pythia(hidden: int, layers: int, heads: int, vocabulary: int = 50304) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
    }


_LLAMA3 = {"max_position_embeddings": 131072, "rope_theta": 500000.0}
_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
_MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "llama-2-7b": _llama(4096, 11008, 32, 32, 32, 32000),
    "llama-2-13b": _llama(5120, 13824, 40, 40, 40, 32000),
    "llama-2-70b": _llama(8192, 28672, 80, 64, 8, 32000),
    "llama-7b": _llama(4096, 11008, 32, 32, 32, 32000),
    "vicuna-7b": _llama(4096, 11008, 32, 32, 32, 32000),
    "codellama-7b": _llama(4096, 11008, 32, 32, 32, 32016),
    "llama-3-8b": _llama(4096, 14336, 32, 32, 8, 128256, **_LLAMA3),
    "llama-3.1-8b": _llama(4096, 14336, 32, 32, 8, 128256, **_LLAMA3),
    "llama-3-70b": _llama(8192, 28672, 80, 64, 8, 128256, **_LLAMA3),
    "llama-3.1-70b": _llama(8192, 28672, 80, 64, 8, 128256, **_LLAMA3),
    "llama-3.3-70b": _llama(8192, 28672, 80, 64, 8, 128256, **_LLAMA3),
    "llama-3.2-1b": _llama(2048, 8192, 16, 32, 8, 128256, tie_word_embeddings=True, head_dim=64, **_LLAMA3),
    "llama-3.2-3b": _llama(3072, 8192, 28, 24, 8, 128256, tie_word_embeddings=True, head_dim=128, **_LLAMA3),
    "tinyllama-1.1b": _llama(2048, 5632, 22, 32, 4, 32000),
    "smollm2-135m": _llama(576, 1536, 30, 9, 3, 49152, tie_word_embeddings=True),
    "smollm2-360m": _llama(960, 2560, 32, 15, 5, 49152, tie_word_embeddings=True),
    "smollm2-1.7b": _llama(2048, 8192, 24, 32, 32, 49152, tie_word_embeddings=True),
    "mistral-7b": _llama(4096, 14336, 32, 32, 8, 32000, **_MISTRAL),
    "mixtral-8x7b": {
        **_llama(4096, 14336, 32, 32, 8, 32000),
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2-0.5b": _qwen("qwen2", 896, 4864, 24, 14, 2, 151936, True),
    "qwen2-1.5b": _qwen("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "qwen2-7b": _qwen("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "qwen2.5-0.5b": _qwen("qwen2", 896, 4864, 24, 14, 2, 151936, True),
    "qwen2.5-1.5b": _qwen("qwen2", 1536, 8960, 28, 12, 2, 151936, True),
    "qwen2.5-3b": _qwen("qwen2", 2048, 11008, 36, 16, 2, 151936, True),
    "qwen2.5-7b": _qwen("qwen2", 3584, 18944, 28, 28, 4, 152064, False),
    "qwen2.5-14b": _qwen("qwen2", 5120, 13824, 48, 40, 8, 152064, False),
    "qwen2.5-32b": _qwen("qwen2", 5120, 27648, 64, 40, 8, 152064, False),
    "qwen2.5-72b": _qwen("qwen2", 8192, 29568, 80, 64, 8, 152064, False),
    "qwen3-0.6b": _qwen("qwen3", 1024, 3072, 28, 16, 8, 151936, True),
    "qwen3-1.7b": _qwen("qwen3", 2048, 6144, 28, 16, 8, 151936, True),
    "qwen3-4b": _qwen("qwen3", 2560, 9728, 36, 32, 8, 151936, True),
    "qwen3-8b": _qwen("qwen3", 4096, 12288, 36, 32, 8, 151936, False),
    "qwen3-14b": _qwen("qwen3", 5120, 17408, 40, 40, 8, 151936, False),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "distilgpt2": _gpt2(768, 6, 12),
    "bert-base-uncased": _bert(768, 12, 12, 30522),
    "bert-base-cased": _bert(768, 12, 12, 28996),
    "bert-base-multilingual-cased": _bert(768, 12, 12, 119547),
    "bert-large-uncased": _bert(1024, 24, 16, 30522),
    "bert-large-cased": _bert(1024, 24, 16, 28996),
    "roberta-base": _bert(768, 12, 12, 50265, "roberta", **_ROBERTA),
    "roberta-large": _bert(1024, 24, 16, 50265, "roberta", **_ROBERTA),
    "xlm-roberta-base": _bert(768, 12, 12, 250002, "xlm-roberta", **_ROBERTA),
    "distilbert-base-uncased": {
        "model_type": "distilbert",
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "vocab_size": 30522,
    },
    "t5-small": _t5(512, 2048, 6, 8),
    "t5-base": _t5(768, 3072, 12, 12),
    "t5-large": _t5(1024, 4096, 24, 16),
    "flan-t5-small": _t5(512, 1024, 8, 6, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "flan-t5-base": _t5(768, 2048, 12, 12, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "flan-t5-large": _t5(1024, 2816, 24, 16, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "flan-t5-xl": _t5(2048, 5120, 24, 32, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "vit-base-patch16-224": _vit(768, 12, 12),
    "vit-base-patch16-224-in21k": _vit(768, 12, 12),
    "vit-large-patch16-224": _vit(1024, 24, 16),
    "opt-125m": _opt(768, 12, 12, 3072),
    "opt-350m": _opt(1024, 24, 16, 4096, 512),
    "opt-1.3b": _opt(2048, 24, 32, 8192),
    "opt-2.7b": _opt(2560, 32, 32, 10240),
    "opt-6.7b": _opt(4096, 32, 32, 16384),
    "pythia-70m": _pythia(512, 6, 8),
    "pythia-160m": _pythia(768, 12, 12),
    "pythia-410m": _pythia(1024, 24, 16),
    "pythia-1b": _pythia(2048, 16, 8),
    "pythia-1.4b": _pythia(2048, 24, 16),
    "pythia-2.8b": _pythia(2560, 32, 32),
    "pythia-6.9b": _pythia(4096, 32, 32, 50432),
    "gemma-2b": {
        **_llama(2048, 16384, 18, 8, 1, 256000, tie_word_embeddings=True, head_dim=256),
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
    },
    "gemma-7b": {
        **_llama(3072, 24576, 28, 16, 16, 256000, tie_word_embeddings=True, head_dim=256),
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
    },
    "phi-2": {
        "model_type": "phi",
        "architectures": ["PhiForCausalLM"],
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 51200,
        "partial_rotary_factor": 0.4,
    },
}

_TRAINED_FURTHER = (
    "-instruct",
    "-chat",
    "-it",
    "-base",
    "-hf",
    "-deduped",
    "-v0.1",
    "-v0.2",
    "-v0.3",
    "-v1.0",
    "-v1.5",
)


def configuration(name: str) -> dict[str, Any] | None:
    """The configuration of a model by its name on the hub, from any publisher; None if it is unknown."""
    short = name.rstrip("/").rsplit("/", 1)[-1].lower().replace("meta-llama-", "llama-")
    while short not in _CONFIGURATIONS:
        end = next((item for item in _TRAINED_FURTHER if short.endswith(item)), None)
        if end is None and "-hf" not in short and "-chat" not in short:
            return None
        short = short[: -len(end)] if end else short.replace("-hf", "").replace("-chat", "")
    return dict(_CONFIGURATIONS[short])
