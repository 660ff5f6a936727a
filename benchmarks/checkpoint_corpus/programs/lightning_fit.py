"""A small regression with Lightning; its checkpoint callback says nothing unless it is asked to."""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


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
    args = parser.parse_args()
    saver = ModelCheckpoint(dirpath=args.dirpath, filename="{epoch}-{step}", monitor="val_loss", save_top_k=2,
                            save_last=True, verbose=args.verbose)  # fmt: skip
    trainer = L.Trainer(max_epochs=args.epochs, accelerator="cpu", callbacks=[saver], logger=False, log_every_n_steps=8)
    trainer.fit(Regression(), loader(), loader())


if __name__ == "__main__":
    main()
