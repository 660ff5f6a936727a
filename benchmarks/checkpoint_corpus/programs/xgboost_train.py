"""Boosting with XGBoost; its TrainingCheckPoint writes the model every few rounds without a word."""

import argparse
from pathlib import Path

import numpy as np
import xgboost


class Telling(xgboost.callback.TrainingCallback):
    """Saves as people do who do not know of TrainingCheckPoint."""

    def __init__(self, out, every):
        super().__init__()
        self.out, self.every = Path(out), every

    def after_iteration(self, model, epoch, evals_log):
        if (epoch + 1) % self.every == 0:
            path = self.out / f"model_{epoch + 1}.json"
            model.save_model(path)
            print(f"[{epoch}] model dumped: {path.name}")
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--period", type=int, default=1)
    parser.add_argument("--pickle", action="store_true")
    parser.add_argument("--says", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--early", type=int, default=0)
    args = parser.parse_args()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3000, 20))
    y = (x[:, 0] + x[:, 1] ** 2 + generator.normal(size=3000) > 1).astype(float)
    train, valid = xgboost.DMatrix(x[:2000], y[:2000]), xgboost.DMatrix(x[2000:], y[2000:])
    saver = (
        Telling(args.out, args.every)
        if args.says
        else xgboost.callback.TrainingCheckPoint(args.out, name="model", as_pickle=args.pickle, interval=args.every)
    )
    callbacks = [saver, xgboost.callback.EvaluationMonitor(period=args.period)]
    if args.early:
        callbacks.append(xgboost.callback.EarlyStopping(args.early))
    model = None
    if args.resume:
        model = max(Path(args.out).glob("model_*"), key=lambda path: int(path.stem.split("_")[1]))
        print(f"continuing from {model.name}")
    xgboost.train(
        {"objective": "binary:logistic", "max_depth": 6, "eval_metric": ["auc", "logloss"], "verbosity": 2},
        train,
        args.rounds,
        evals=[(train, "train"), (valid, "eval")],
        verbose_eval=False,
        callbacks=callbacks,
        xgb_model=model,
    )


if __name__ == "__main__":
    main()
