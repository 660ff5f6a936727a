"""A trainer that torchrun starts anew with however many workers there are: it saves, and goes on from its last save.

Arguments: a folder, for its checkpoint and for the file ``slow``, with which steps of three workers take three times as
long.
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

EVERY, STEPS, STEP_S = 100, 100_000, 0.2


def say(text: str) -> None:
    """With the time, as a kubelet writes it in front of each line; that of the tests does not."""
    print(f"{datetime.now(UTC).isoformat()} {text}", flush=True)


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    saved, slow, weights = folder / "checkpoint.pt", folder / "slow", torch.zeros(4)
    done = 0
    if saved.exists():
        state = torch.load(saved)
        done, weights = state["step"], state["weights"]
        say(f"Resuming training from checkpoint {saved}, step {done}")
    for step in range(done + 1, STEPS + 1):
        time.sleep(STEP_S * (3 if world > 2 and slow.exists() else 1))
        gradient = torch.ones(4) * rank
        dist.all_reduce(gradient)
        weights += gradient / world
        if rank == 0:
            say(f"step {step}/{STEPS} loss {weights.sum() / step:.4f}")
        if rank == 0 and step % EVERY == 0:
            say(f"Saving model checkpoint to {saved}")
            torch.save({"step": step, "weights": weights}, folder / "writing.pt")
            (folder / "writing.pt").replace(saved)
            say(f"Saved checkpoint to {saved} at step {step}")


if __name__ == "__main__":
    main()
