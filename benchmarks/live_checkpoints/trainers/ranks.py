"""Two ranks of torch.distributed, each writing its part: ranks.py shards|dcp FOLDER STEP_SECONDS SAVE_EVERY."""

import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from record import Record, newest_first, step_in
from torch.nn.parallel import DistributedDataParallel

RANKS, KEEP, REPORT_EVERY = 2, 3, 4


def train(rank: int, way: str, folder: Path, step_s: float, every: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = [torch.zeros(1)]

    def shard(path: Path) -> Path:
        return path / f"shard_rank_{rank}.pt"

    def load(path: Path) -> int:
        if way == "dcp":
            dcp.load({"model": model.module.state_dict()}, checkpoint_id=str(path))
            return step_in(path)
        for number in range(RANKS):
            torch.load(path / f"shard_rank_{number}.pt")
        model.module.load_state_dict(torch.load(shard(path))["model"])
        return step_in(path)

    record = Record() if rank == 0 else None
    if record is not None:
        # One of them looks for what is whole; DCP needs both for a load, so that only its index is read here.
        check = dcp.FileSystemReader if way == "dcp" else None
        parts[0][0] = record.resume(
            newest_first(folder.glob("step-*")),
            lambda path: step_in(path) if check and check(path).read_metadata() else load(path),
        )
    dist.broadcast(parts[0], 0)
    step = int(parts[0])
    if step:
        load(folder / f"step-{step}")
    while True:
        x = torch.randn(16, 256)
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(step_s)
        if step % REPORT_EVERY == 0:
            print(f"[rank{rank}]: step: {step}  loss: {float(loss):.5f}", flush=True)
        if step % every:
            continue
        path = folder / f"step-{step}"
        if record is not None:
            record.note("begin", step=step)
            path.mkdir(exist_ok=True)
        dist.barrier()
        began_s = time.monotonic()
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        if way == "dcp":
            if rank == 0:
                print(f"[rank0]: Saving the checkpoint of step {step} with DCP.", flush=True)
            dcp.save({"model": state["model"]}, checkpoint_id=str(path))
        else:
            print(f"[rank{rank}]: saving {shard(path)}", flush=True)
            # The second has more to write, as the last stage of a pipeline.
            torch.save(state | {"head": torch.zeros(200_000 * rank)}, shard(path))
            print(f"[rank{rank}]: saved {shard(path)}", flush=True)
        dist.barrier()
        if record is not None:
            record.note("durable", step=step)
            if way == "dcp":
                print(f"[rank0]: Finished saving in {time.monotonic() - began_s:.2f} seconds.", flush=True)
            for old in newest_first(folder.glob("step-*"))[KEEP:]:
                shutil.rmtree(old)


def main() -> None:
    way, folder, step_s, every = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    meeting = f"/dev/shm/kopt-ranks-{time.monotonic_ns()}"
    arguments = (way, folder, step_s, every, meeting)
    torch.multiprocessing.spawn(train, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()
