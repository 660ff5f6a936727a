"""A tiny training that never saves by itself: python train.py OUTPUT FOLDER. Each rank reads FOLDER/RANK/annotations.

Prints a line for each step, and ends when OUTPUT/stop is there.
"""

import os
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from kopt.saving import SaveOnRequest


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        ids = torch.full((8,), index % 16)
        return {"input_ids": ids, "labels": ids}


class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.is_world_process_zero:
            say(f"step {state.global_step} {time.time()}")
        time.sleep(0.02)
        # Every rank must end at the same step.
        word = torch.tensor([int((Path(args.output_dir) / "stop").exists())])
        if args.world_size > 1:
            torch.distributed.all_reduce(word)
        control.should_training_stop = bool(word.item())


def main():
    output, folder = sys.argv[1:]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    arguments = TrainingArguments(
        output_dir=output,
        max_steps=100_000,
        save_strategy="no",
        logging_steps=10_000,
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=1,
        disable_tqdm=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
    )
    asks = SaveOnRequest(Path(folder) / os.environ.get("RANK", "0") / "annotations", agree_every=3)
    Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[asks, Tells()]).train()
    say("the end")


main()
