"""A tiny language model with the Trainer of transformers that can be asked to save: train.py OUTPUT ANNOTATIONS.

Goes on from its newest whole checkpoint, and ends when OUTPUT/enough is there.
"""

import logging
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from kopt.saving import SaveOnRequest

STEP_S, FIRST_SAVE, SAVES = 0.1, 50, 2_000


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        ids = torch.full((16,), index % 64)
        return {"input_ids": ids, "labels": ids}


class Paced(TrainerCallback):
    """As slow as a real one, so that there is something to look at; saves soon, and then seldom by itself."""

    def on_step_end(self, args, state, control, **_):
        time.sleep(STEP_S)
        control.should_save = control.should_save or state.global_step == FIRST_SAVE
        control.should_training_stop = (Path(args.output_dir) / "enough").exists()


def main():
    output = Path(sys.argv[1])
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
    transformers.utils.logging.set_verbosity_info()
    transformers.utils.logging.enable_default_handler()
    transformers.utils.logging.enable_explicit_format()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=100_000,
        save_steps=SAVES,
        logging_steps=10,
        save_total_limit=3,
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=2,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Tokens(), callbacks=[SaveOnRequest(sys.argv[2]), Paced()]
    )
    whole = [one.parent for one in output.glob("checkpoint-*/trainer_state.json")]
    newest = max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)


if __name__ == "__main__":
    main()
