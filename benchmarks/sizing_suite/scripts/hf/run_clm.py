#!/usr/bin/env python
"""Causal language modelling with the Trainer; the model is built from a config, its weights are random."""
import logging
import sys
from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments, set_seed

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_type: str = field(default="llama", metadata={"help": "llama, qwen2, gpt2, mistral, opt, …"})
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 12
    intermediate_size: int = 2048
    vocab_size: int = 32000
    weights_dtype: str = field(default="float32", metadata={"help": "dtype of the weights"})

    def config(self, positions):
        if self.model_type == "gpt2":
            return AutoConfig.for_model("gpt2", n_embd=self.hidden_size, n_layer=self.num_hidden_layers,
                                        n_head=self.num_attention_heads, vocab_size=self.vocab_size,
                                        n_positions=positions, use_cache=False)
        return AutoConfig.for_model(
            self.model_type, hidden_size=self.hidden_size, num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads, num_key_value_heads=self.num_key_value_heads,
            intermediate_size=self.intermediate_size, vocab_size=self.vocab_size,
            max_position_embeddings=positions, use_cache=False,
        )


@dataclass
class DataArguments:
    block_size: int = 1024
    num_samples: int = 512


class RandomBlocks(Dataset):
    def __init__(self, samples, length, vocab):
        self.samples, self.length, self.vocab = samples, length, vocab

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        ids = torch.randint(self.vocab, (self.length,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO, handlers=[logging.StreamHandler(sys.stdout)])
    set_seed(training_args.seed)
    config = model_args.config(data_args.block_size)
    model = AutoModelForCausalLM.from_config(config)
    model.to(getattr(torch, model_args.weights_dtype))
    logger.info("Training new model from scratch: %.1fM parameters", model.num_parameters() / 2**20)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=RandomBlocks(data_args.num_samples, data_args.block_size, model_args.vocab_size),
    )
    result = trainer.train()
    logger.info("train_loss %.4f", result.training_loss)


if __name__ == "__main__":
    main()
