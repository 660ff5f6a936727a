"""A classifier with skorch, whose Checkpoint callback marks in its table what it has saved."""

import argparse

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, TrainEndCheckpoint


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--says", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6000, 24)).astype("float32")
    y = (x[:, :2].sum(1) > 0).astype("int64")
    name = "{last_epoch[epoch]}_" if args.every else "best_"
    saver = Checkpoint(
        monitor=None if args.every else "valid_loss_best",
        dirname=args.out,
        f_params=f"{name}params.pt",
        f_optimizer=f"{name}optimizer.pt",
        f_criterion=None,
        f_history=f"{name}history.json",
        sink=print if args.says else lambda text: None,
    )
    net = NeuralNetClassifier(
        torch.nn.Sequential(torch.nn.Linear(24, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2)),
        criterion=torch.nn.CrossEntropyLoss,
        max_epochs=args.epochs,
        lr=0.005,
        batch_size=16,
        callbacks=[saver, TrainEndCheckpoint(dirname=args.out)],
    )
    net.fit(x, y)


if __name__ == "__main__":
    main()
