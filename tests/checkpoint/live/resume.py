"""Resumes a training from each of several copies of its checkpoint folder, as its user would: from the newest there is.

Prints one JSON line per copy: {"copy", "newest", "resumed_at", "trained_to"} or {"copy", "error"}.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        torch.manual_seed(index)
        ids = torch.randint(0, 256, (32,))
        return {"input_ids": ids, "labels": ids}


class Stops(TrainerCallback):
    """Notes the step that training went on from, and stops after one more."""

    def on_train_begin(self, args, state, control, **_):
        self.resumed_at = state.global_step

    def on_step_end(self, args, state, control, **_):
        control.should_training_stop = True


def resume(copy):
    newest = max(copy.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(copy / "again"),
        max_steps=10_000,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=8,
        disable_tqdm=True,
    )
    stops = Stops()
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[stops])
    trainer.train(resume_from_checkpoint=str(newest))
    return {"newest": newest.name, "resumed_at": stops.resumed_at, "trained_to": trainer.state.global_step}


for copy in map(Path, sys.argv[1:]):
    try:
        found = resume(copy)
    except Exception as error:  # noqa: BLE001 - whatever a torn checkpoint makes of the trainer
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps({"copy": copy.name, **found}) + "\n")
    sys.stdout.flush()
