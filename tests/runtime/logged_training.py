"""``python logged_training.py URI EXPERIMENT:STATUS[:NAME=VALUE]…``: trainings that log themselves to MLflow.

A linear model learns by gradient descent, as users' scripts do; the status says how one goes out: FINISHED, FAILED (by
an exception), KILLED, NESTED (with two trials below it) or RUNNING (its process dies without a word: the last one).
"""

import contextlib
import os
import random
import sys

import mlflow


def train(steps: int) -> None:
    random.seed(7)
    weight = 0.0
    for step in range(steps):
        x = random.uniform(-1, 1)
        error = (weight - 3.0) * x
        weight -= 0.1 * error * x
        mlflow.log_metric("loss", error * error, step=step)


def run(experiment: str, status: str, parameters: dict[str, str]) -> None:
    mlflow.set_experiment(experiment)
    if status == "KILLED":
        mlflow.start_run()
        mlflow.log_params(parameters)
        train(2)
        mlflow.end_run(status="KILLED")
        return
    with mlflow.start_run():
        mlflow.log_params(parameters)
        train(2)
        if status == "NESTED":
            for _ in range(2):
                with mlflow.start_run(nested=True):
                    mlflow.log_params(parameters)
        if status == "FAILED":
            raise RuntimeError("out of data")
        if status == "RUNNING":
            os._exit(9)


def main(uri: str, *runs: str) -> None:
    mlflow.set_tracking_uri(uri)
    for each in runs:
        experiment, status, *words = each.split(":")
        with contextlib.suppress(RuntimeError):
            run(experiment, status, dict(word.split("=") for word in words))


if __name__ == "__main__":
    main(*sys.argv[1:])
