"""Boosting with LightGBM; a callback writes the model every few rounds, with or without a word."""

import argparse
from pathlib import Path

import lightgbm
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--says", action="store_true")
    args = parser.parse_args()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 20))
    y = (x[:, 0] + x[:, 1] ** 2 > 1).astype(float)
    train, valid = lightgbm.Dataset(x[:1500], y[:1500]), lightgbm.Dataset(x[1500:], y[1500:])

    def snapshot(env):
        done = env.iteration + 1
        if done % args.every == 0:
            path = Path(args.out) / f"model.snapshot_iter_{done}.txt"
            env.model.save_model(path)
            if args.says:
                print(f"Snapshot of iteration {done} written to {path}")

    lightgbm.train(
        {"objective": "binary", "num_leaves": 31, "verbose": 1, "metric": "auc"},
        train,
        num_boost_round=args.rounds,
        valid_sets=[valid],
        callbacks=[lightgbm.log_evaluation(5), snapshot],
    )


if __name__ == "__main__":
    main()
