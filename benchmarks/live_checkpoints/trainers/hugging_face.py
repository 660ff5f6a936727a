"""A tiny language model with the Trainer of transformers as it is: hugging_face.py FOLDER STEP_SECONDS SAVE_EVERY."""

import logging
import sys
import time
from pathlib import Path

import torch
import transformers
from record import Record, newest_first, step_in
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

transformers.utils.logging.set_verbosity_info()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        ids = torch.full((16,), index % 64)
        return {"input_ids": ids, "labels": ids}


class Paced(TrainerCallback):
    def __init__(self, step_s):
        self.step_s = step_s

    def on_step_end(self, *_, **__):
        time.sleep(self.step_s)


class Recorded(Trainer):
    record: Record

    def _save_checkpoint(self, *arguments, **named):
        with self.record.writing(self.state.global_step):
            super()._save_checkpoint(*arguments, **named)


def trainer_for(folder, step_s, every, record):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=96, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=100_000,
        save_steps=every,
        logging_steps=4,
        save_total_limit=3,
        report_to=[],
        use_cpu=True,
        per_device_train_batch_size=2,
    )
    trainer = Recorded(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Paced(step_s)])
    trainer.record = record
    return trainer


def main():
    folder, step_s, every = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", level=logging.INFO)
    record = Record()

    def load(path):
        transformers.TrainerState.load_from_json(str(path / "trainer_state.json"))
        torch.load(path / "optimizer.pt")
        GPT2LMHeadModel.from_pretrained(path)
        return step_in(path)

    step = record.resume(newest_first(folder.glob("checkpoint-*")), load)
    newest = str(folder / f"checkpoint-{step}") if step else None
    trainer_for(folder, step_s, every, record).train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
