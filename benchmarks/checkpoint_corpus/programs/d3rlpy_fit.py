"""Offline reinforcement learning with d3rlpy, which saves every few epochs."""

import argparse

import d3rlpy
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--epoch", type=int, default=50)
    parser.add_argument("--interval", type=int, default=1)
    args = parser.parse_args()
    generator = np.random.default_rng(0)
    count = 1000
    data = d3rlpy.dataset.MDPDataset(
        observations=generator.normal(size=(count, 8)).astype("float32"),
        actions=generator.integers(0, 3, count),
        rewards=generator.normal(size=count).astype("float32"),
        terminals=np.arange(1, count + 1) % 50 == 0,
    )
    encoder = d3rlpy.models.VectorEncoderFactory([48])
    dqn = d3rlpy.algos.DQNConfig(encoder_factory=encoder, batch_size=16).create(device="cpu:0")
    dqn.fit(
        data,
        n_steps=args.steps,
        n_steps_per_epoch=args.epoch,
        save_interval=args.interval,
        logger_adapter=d3rlpy.logging.FileAdapterFactory(root_dir=args.out),
    )


if __name__ == "__main__":
    main()
