"""A tiny language model with the Trainer of transformers, as its examples write it."""

import argparse
import logging
import sys
from pathlib import Path

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 256

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
    parser.add_argument("--best", action="store_true", help="keep the best one and load it at the end")
    parser.add_argument("--log_every", type=int, default=2)
    parser.add_argument("--no_bar", action="store_true")
    args = parser.parse_args()
    if args.info:
        logging.basicConfig(
            format="%(asctime)s - %(levelname)s - %(name)s - %(message)s",
            datefmt="%m/%d/%Y %H:%M:%S",
            handlers=[logging.StreamHandler(sys.stdout)],
            level=logging.INFO,
        )
        transformers.utils.logging.set_verbosity_info()
        transformers.utils.logging.enable_default_handler()
        transformers.utils.logging.enable_explicit_format()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    evaluated = {"eval_strategy": "steps", "eval_steps": args.save_steps} if args.eval or args.best else {}
    if args.best:
        evaluated |= {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    training = TrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        save_steps=args.save_steps,
        logging_steps=args.log_every,
        per_device_train_batch_size=8,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=args.no_bar,
        **evaluated,
    )
    trainer = Trainer(model=model, args=training, train_dataset=Tokens(), eval_dataset=Tokens())
    # What was cut off is passed over, as people do who have lost a run to it once.
    whole = [one.parent for one in Path(args.output_dir).glob("checkpoint-*/trainer_state.json")] if args.resume else []
    newest = max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    trainer.save_model()


if __name__ == "__main__":
    main()
