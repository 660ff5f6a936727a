"""Boosting with CatBoost, which writes a snapshot every so many seconds without a word."""

import argparse

import catboost
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--period", type=int, default=100)
    args = parser.parse_args()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 20))
    y = (x[:, 0] + x[:, 1] ** 2 + generator.normal(size=2000) > 1).astype(int)
    model = catboost.CatBoostClassifier(
        iterations=args.iterations,
        depth=5,
        learning_rate=0.02,
        thread_count=1,
        metric_period=args.period,
        train_dir=args.out,
        allow_writing_files=True,
    )
    model.fit(
        x[:1500],
        y[:1500],
        eval_set=(x[1500:], y[1500:]),
        save_snapshot=True,
        snapshot_file="experiment.cbsnapshot",
        snapshot_interval=args.seconds,
        use_best_model=False,
    )


if __name__ == "__main__":
    main()
