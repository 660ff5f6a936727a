"""A LightningModule: any timm model, any precision and optimizer that Lightning knows."""
import argparse

import lightning as L
import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy


class Pictures(Dataset):
    def __init__(self, n, size):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.rand(3, self.size, self.size), i % 1000


class PicturesModule(L.LightningDataModule):
    def __init__(self, batch, size, count):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return DataLoader(Pictures(self.hparams.count, self.hparams.size), self.hparams.batch, num_workers=2)

    def val_dataloader(self):
        return DataLoader(Pictures(2 * self.hparams.batch, self.hparams.size), self.hparams.batch)


class Classifier(L.LightningModule):
    def __init__(self, model="convnext_tiny", lr=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = timm.create_model(model, num_classes=1000)
        self.accuracy = MulticlassAccuracy(num_classes=1000)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_acc", self.accuracy(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="convnext_tiny")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--max_steps", type=int, default=5)
    args = parser.parse_args()
    L.seed_everything(42)
    count = args.batch * args.accumulate * args.max_steps
    trainer = L.Trainer(
        accelerator="auto", devices=1, max_steps=args.max_steps, precision=args.precision, logger=False,
        accumulate_grad_batches=args.accumulate, enable_checkpointing=False, gradient_clip_val=1.0,
        limit_val_batches=2 if args.validate else 0, num_sanity_val_steps=0, enable_progress_bar=False,
    )
    trainer.fit(Classifier(args.model), datamodule=PicturesModule(args.batch, args.size, count))
    print({k: float(v) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
