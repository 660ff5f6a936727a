"""Training with SpeechBrain's Brain and its Checkpointer."""

import argparse
import logging

import speechbrain
import torch


class Brain(speechbrain.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.net(batch[0])

    def compute_objectives(self, predictions, batch, stage):
        return torch.nn.functional.cross_entropy(predictions, batch[1])

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == speechbrain.Stage.TRAIN:
            self.train_loss = stage_loss
        if stage == speechbrain.Stage.VALID:
            print(f"Epoch {epoch} complete: train loss {self.train_loss:.4f}, valid loss {stage_loss:.4f}")
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"], num_to_keep=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--interval", type=int, default=0, help="steps between checkpoints within an epoch")
    args = parser.parse_args()
    logging.basicConfig(format="%(name)s - %(message)s", level=logging.INFO)
    x = torch.randn(800, 24)
    data = torch.utils.data.TensorDataset(x, (x[:, :2].sum(1) > 0).long())
    loader = speechbrain.dataio.dataloader.SaveableDataLoader(data, batch_size=16)
    net = torch.nn.Sequential(torch.nn.Linear(24, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2))
    counter = speechbrain.utils.epoch_loop.EpochCounter(args.epochs)
    saver = speechbrain.utils.checkpoints.Checkpointer(args.out, recoverables={"net": net, "counter": counter})
    options = {"device": "cpu", "noprogressbar": not args.bar}
    if args.interval:
        options["ckpt_interval_steps"] = args.interval
    brain = Brain(
        {"net": net}, lambda parameters: torch.optim.Adam(parameters, 1e-3), run_opts=options, checkpointer=saver
    )
    brain.fit(counter, loader, loader)


if __name__ == "__main__":
    main()
