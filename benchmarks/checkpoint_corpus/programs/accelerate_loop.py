"""A training loop with accelerate that saves its whole state, and resumes from it."""

import argparse
import logging
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import ProjectConfiguration
from tqdm.auto import tqdm

logger = get_logger(__name__)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_train_steps", type=int, default=100)
    parser.add_argument("--checkpointing_steps", type=int, default=10)
    parser.add_argument("--no_bar", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--keep", type=int, default=0)
    args = parser.parse_args()
    project = ProjectConfiguration(args.output_dir, automatic_checkpoint_naming=True, total_limit=args.keep)
    accelerator = Accelerator(cpu=True, project_config=project if args.keep else None)
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", datefmt="%m/%d/%Y %H:%M:%S", level=logging.INFO
    )
    logger.info(accelerator.state, main_process_only=False)
    model = torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(), torch.nn.Linear(256, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.max_train_steps)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 32)), batch_size=16)
    model, optimizer, schedule, data = accelerator.prepare(model, optimizer, schedule, data)
    logger.info("***** Running training *****")
    logger.info(f"  Num examples = {len(data.dataset)}")
    logger.info(f"  Total optimization steps = {args.max_train_steps}")
    if args.resume:
        newest = max(
            Path(args.output_dir).glob("checkpoint-*/random_states_0.pkl"),
            key=lambda path: int(path.parent.name.split("-")[1]),
        ).parent
        logger.info(f"Resumed from checkpoint: {newest}")
        accelerator.load_state(str(newest))
    bar = tqdm(range(args.max_train_steps), desc="Steps", disable=args.no_bar)
    for step, (x,) in enumerate(data, 1):
        loss = torch.nn.functional.mse_loss(model(x), x)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        bar.update(1)
        bar.set_postfix(loss=loss.item(), lr=schedule.get_last_lr()[0])
        if args.no_bar and step % 5 == 0:
            logger.info(f"step {step}: loss {loss.item():.4f}")
        if step % args.checkpointing_steps == 0:
            folder = Path(args.output_dir) / f"checkpoint-{step}"
            accelerator.save_state() if args.keep else accelerator.save_state(str(folder))
            logger.info(f"Saved state to {folder}")
        if step >= args.max_train_steps:
            break
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
