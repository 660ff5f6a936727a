"""Lightning with its checkpoint callback, which says nothing: lightning_fit.py FOLDER STEP_SECONDS SAVE_EVERY."""

import sys
import time
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from record import Record, newest_first


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[0])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Paced(Callback):
    def __init__(self, step_s):
        self.step_s = step_s

    def on_train_batch_end(self, *_, **__):
        time.sleep(self.step_s)


class Recorded(L.Trainer):
    record: Record

    def save_checkpoint(self, *arguments, **named):
        with self.record.writing(self.global_step):
            super().save_checkpoint(*arguments, **named)


def main():
    folder, step_s, every = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    record = Record()
    saving = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=every, save_top_k=3, monitor="step", mode="max"
    )
    trainer = Recorded(
        max_epochs=-1, accelerator="cpu", callbacks=[saving, Paced(step_s)], logger=False, log_every_n_steps=4
    )
    trainer.record = record
    step = record.resume(
        newest_first(folder.glob("*.ckpt")), lambda path: torch.load(path, weights_only=False)["global_step"]
    )
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(640, 256)), batch_size=16)
    trainer.fit(Regression(), data, ckpt_path=folder / f"step={step}.ckpt" if step else None)


if __name__ == "__main__":
    main()
