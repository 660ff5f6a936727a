"""A classifier with MosaicML's Composer, which saves without a word unless it is asked to log."""

import argparse
import logging

import torch
from composer import Trainer
from composer.models import ComposerClassifier


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--console", action="store_true")
    args = parser.parse_args()
    if args.debug:
        logging.basicConfig(
            format="%(asctime)s: rank0[%(process)d][%(threadName)s]: %(levelname)s: %(name)s: %(message)s"
        )
        logging.getLogger("composer").setLevel(logging.DEBUG)
    torch.manual_seed(0)
    x = torch.randn(1600, 24)
    data = torch.utils.data.TensorDataset(x, (x[:, :2].sum(1) > 0).long())
    net = torch.nn.Sequential(torch.nn.Linear(24, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    trainer = Trainer(
        model=ComposerClassifier(net, num_classes=2),
        max_duration=f"{args.batches}ba",
        device="cpu",
        run_name="run",
        train_dataloader=torch.utils.data.DataLoader(data, batch_size=16),
        progress_bar=not args.console,
        eval_dataloader=torch.utils.data.DataLoader(data, batch_size=64),
        eval_interval="1ep",
        log_to_console=args.console,
        console_log_interval="5ba",
        save_folder=args.out,
        save_interval=f"{args.every}ba",
        save_num_checkpoints_to_keep=4,
    )
    trainer.fit()


if __name__ == "__main__":
    main()
