"""Training with PyTorch-Ignite, its progress bars and its checkpoint handlers."""

import argparse
import logging

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, ModelCheckpoint, ProgressBar, global_step_from_engine
from ignite.metrics import Accuracy, Loss
from ignite.utils import setup_logger


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--every", type=int, default=40)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--bar", action="store_true")
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(1600, 24)
    y = (x[:, :2].sum(1) > 0).long()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
    model = torch.nn.Sequential(torch.nn.Linear(24, 160), torch.nn.ReLU(), torch.nn.Linear(160, 2))
    optimizer, loss = torch.optim.Adam(model.parameters(), 1e-3), torch.nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, loss)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(loss)})
    trainer.logger, evaluator.logger = setup_logger("trainer"), setup_logger("evaluator")
    log = setup_logger("train")
    if args.bar:
        ProgressBar(persist=True).attach(trainer, output_transform=lambda output: {"loss": output})
    else:
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(every=10),
            lambda engine: log.info(
                f"Epoch[{engine.state.epoch}] Iteration[{engine.state.iteration}] Loss: {engine.state.output:.4f}"
            ),
        )

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine):
        metrics = evaluator.run(loader).metrics
        log.info(f"Validation Results - Epoch: {engine.state.epoch} Avg accuracy: {metrics['accuracy']:.3f}")

    if args.best:
        saver = ModelCheckpoint(
            args.out,
            "best",
            n_saved=2,
            require_empty=False,
            score_function=lambda engine: -engine.state.metrics["loss"],
            score_name="neg_loss",
            global_step_transform=global_step_from_engine(trainer),
        )
        evaluator.add_event_handler(Events.COMPLETED, saver, {"model": model})
    else:
        state = {"model": model, "optimizer": optimizer, "trainer": trainer}
        saver = Checkpoint(state, DiskSaver(args.out, create_dir=True, require_empty=False), n_saved=3)
        trainer.add_event_handler(Events.ITERATION_COMPLETED(every=args.every), saver)
    logging.getLogger("ignite").setLevel(logging.INFO)
    trainer.run(loader, max_epochs=args.epochs)


if __name__ == "__main__":
    main()
