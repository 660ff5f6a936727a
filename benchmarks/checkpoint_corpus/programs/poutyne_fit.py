"""A classifier with Poutyne and its callbacks that save."""

import argparse
from pathlib import Path

import torch
from poutyne import Model, ModelCheckpoint, set_seeds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--best", action="store_true")
    args = parser.parse_args()
    set_seeds(0)
    x = torch.randn(800, 24)
    y = (x[:, :2].sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(x, y)
    net = torch.nn.Sequential(torch.nn.Linear(24, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    model = Model(net, "adam", "cross_entropy", batch_metrics=["accuracy"], device="cpu")
    saver = ModelCheckpoint(
        str(Path(args.out) / "checkpoint_{epoch}.ckpt"),
        monitor="val_loss",
        mode="min",
        save_best_only=args.best,
        verbose=True,
        temporary_filename=str(Path(args.out) / "checkpoint.tmp.ckpt"),
    )
    model.fit_dataset(
        data, data, epochs=args.epochs, batch_size=16, callbacks=[saver], progress_options={"coloring": False}
    )


if __name__ == "__main__":
    main()
