"""Training with MMEngine's Runner, whose CheckpointHook saves by epoch, by iteration, or what is best."""

import argparse

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(24, 192), torch.nn.ReLU(), torch.nn.Linear(192, 2))

    def forward(self, x, y, mode):
        out = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(out, y)} if mode == "loss" else (out, y)


class Right(BaseMetric):
    def process(self, data_batch, data_samples):
        out, y = data_samples
        self.results.append({"size": len(y), "right": int((out.argmax(1) == y).sum())})

    def compute_metrics(self, results):
        return {"accuracy": 100 * sum(one["right"] for one in results) / sum(one["size"] for one in results)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--interval", type=int, default=1)
    parser.add_argument("--iterations", action="store_true")
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(800, 24)
    y = (x[:, :2].sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(x, y)
    loader = {
        "batch_size": 16,
        "dataset": data,
        "sampler": {"type": "DefaultSampler", "shuffle": True},
        "collate_fn": {"type": "default_collate"},
    }
    hook = {
        "type": "CheckpointHook",
        "interval": args.interval,
        "by_epoch": not args.iterations,
        "max_keep_ckpts": args.keep,
        "save_best": "accuracy" if args.best else None,
        "rule": "greater",
    }
    if not args.best:
        hook.pop("rule")
        hook.pop("save_best")
    loop = {"max_iters": args.epochs * 50, "val_interval": 50, "by_epoch": False, "type": "IterBasedTrainLoop"}
    if args.iterations:
        loop.pop("by_epoch")
    runner = Runner(
        Model(),
        work_dir=args.out,
        train_dataloader=loader,
        val_dataloader=loader | {"sampler": {"type": "DefaultSampler", "shuffle": False}},
        train_cfg=loop if args.iterations else {"by_epoch": True, "max_epochs": args.epochs, "val_interval": 1},
        val_cfg={},
        val_evaluator=[Right()],
        optim_wrapper={"optimizer": {"type": "Adam", "lr": 1e-3}},
        default_hooks={"checkpoint": hook, "logger": {"type": "LoggerHook", "interval": 10}},
        resume=args.resume,
        launcher="none",
        log_processor={"by_epoch": not args.iterations},
    )
    runner.train()


if __name__ == "__main__":
    main()
