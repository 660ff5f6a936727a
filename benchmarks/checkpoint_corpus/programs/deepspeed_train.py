"""A small model in a DeepSpeed engine on the CPU, which saves by its own checkpoint engine."""

import argparse
import os

for name, value in {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29511",
    "DS_ACCELERATOR": "cpu",
}.items():
    os.environ.setdefault(name, value)
import deepspeed  # noqa: E402
import torch  # noqa: E402


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--info", action="store_true")
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    if args.info:
        deepspeed.utils.logging.set_log_level_from_string("info")
    deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "steps_per_print": 5,
        "zero_optimization": {"stage": args.stage},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "wall_clock_breakdown": False,
        "zero_force_ds_cpu_optimizer": False,
    }
    net = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(3)])
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    for step in range(1, args.steps + 1):
        x = torch.randn(8, 128)
        loss = (engine(x) - x).square().mean()
        engine.backward(loss)
        engine.step()
        if step % 5 == 0 and engine.global_rank == 0:
            print(f"step: {step}, loss: {loss.item():.4f}", flush=True)
        if step % args.every == 0:
            engine.save_checkpoint(args.out, tag=f"global_step{step}")


if __name__ == "__main__":
    main()
