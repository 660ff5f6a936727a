"""A tiny language model with the Trainer of transformers, as its examples write it."""

import argparse
import logging
import sys

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        torch.manual_seed(index)
        ids = torch.randint(0, 256, (32,))
        return {"input_ids": ids, "labels": ids}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_steps", type=int, default=60)
    parser.add_argument("--save_steps", type=int, default=5)
    parser.add_argument("--eval", action="store_true")
    parser.add_argument("--info", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--safe", type=int, default=1)
    args = parser.parse_args()
    if args.info:
        logging.basicConfig(
            format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", datefmt="%m/%d/%Y %H:%M:%S",
            handlers=[logging.StreamHandler(sys.stdout)], level=logging.INFO,
        )  # fmt: skip
        transformers.utils.logging.set_verbosity_info()
        transformers.utils.logging.enable_default_handler()
        transformers.utils.logging.enable_explicit_format()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    evaluated = {"eval_strategy": "steps", "eval_steps": args.save_steps} if args.eval else {}
    training = TrainingArguments(
        output_dir=args.output_dir, max_steps=args.max_steps, save_steps=args.save_steps, logging_steps=2,
        per_device_train_batch_size=8, save_total_limit=2, report_to=[], use_cpu=True, **evaluated,
    )  # fmt: skip
    trainer = Trainer(model=model, args=training, train_dataset=Tokens(), eval_dataset=Tokens())
    trainer.train(resume_from_checkpoint=args.resume or None)
    trainer.save_model()


if __name__ == "__main__":
    main()
