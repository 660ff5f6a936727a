"""A small regression with Lightning; its checkpoint callback says nothing unless it is asked to."""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar


class Regression(L.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader():
    x = torch.randn(512, 16)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dirpath", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--every", type=int, default=0, help="save all these steps, not what is best")
    parser.add_argument("--plain-bar", action="store_true", help="tqdm's bar")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    chosen = (
        {"every_n_train_steps": args.every, "save_top_k": -1}
        if args.every
        else {"monitor": "val_loss", "save_top_k": 2, "save_last": True}
    )
    callbacks = [ModelCheckpoint(dirpath=args.dirpath, filename="{epoch}-{step}", verbose=args.verbose, **chosen)]
    if args.plain_bar:
        callbacks.append(TQDMProgressBar(refresh_rate=4))
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", callbacks=callbacks, logger=False, log_every_n_steps=8
    )
    newest = max(Path(args.dirpath).glob("*.ckpt"), key=lambda path: path.stat().st_mtime) if args.resume else None
    trainer.fit(Regression(), loader(), loader(), ckpt_path=newest)


if __name__ == "__main__":
    main()
