"""Tabular training with fastai; SaveModelCallback keeps every epoch or the best one."""

import argparse

import torch
from fastai.basics import DataLoaders, Learner, accuracy
from fastai.callback.all import SaveModelCallback


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--with-opt", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    x = torch.randn(1200, 24)
    y = (x[:, :2].sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(x, y)
    loaders = DataLoaders(
        *[torch.utils.data.DataLoader(one, batch_size=24) for one in torch.utils.data.random_split(data, [1000, 200])]
    )
    model = torch.nn.Sequential(torch.nn.Linear(24, 128), torch.nn.ReLU(), torch.nn.Linear(128, 2))
    learner = Learner(
        loaders, model, loss_func=torch.nn.CrossEntropyLoss(), metrics=accuracy, path=args.out, model_dir="."
    )
    saver = SaveModelCallback(fname="model" if args.every else "best", every_epoch=args.every, with_opt=args.with_opt)
    if args.bar:
        learner.fit_one_cycle(args.epochs, 3e-3, cbs=[saver])
    else:
        with learner.no_bar():
            learner.fit_one_cycle(args.epochs, 3e-3, cbs=[saver])


if __name__ == "__main__":
    main()
