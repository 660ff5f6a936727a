"""A small classifier with Keras; its callbacks save every epoch, every few batches, or when something has improved."""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np


def callbacks(args):
    out, verbose = Path(args.out), int(args.verbose)
    saver = keras.callbacks.ModelCheckpoint
    return {
        "best": lambda: [
            saver(str(out / "best-{epoch:03d}.keras"), monitor="val_loss", save_best_only=True, verbose=verbose)
        ],
        "best-one": lambda: [
            saver(str(out / "best.keras"), monitor="val_accuracy", save_best_only=True, verbose=verbose)
        ],
        "epochs": lambda: [saver(str(out / "model-{epoch:03d}.keras"), verbose=verbose)],
        "weights": lambda: [saver(str(out / "cp-{epoch:04d}.weights.h5"), save_weights_only=True, verbose=verbose)],
        "batches": lambda: [saver(str(out / "batch-{epoch:02d}.keras"), save_freq=37, verbose=verbose)],
        "backup": lambda: [keras.callbacks.BackupAndRestore(str(out / "backup"), delete_checkpoint=False)],
        "both": lambda: [
            keras.callbacks.BackupAndRestore(str(out / "backup"), save_freq=29, delete_checkpoint=False),
            saver(str(out / "model-{epoch:03d}.keras"), monitor="val_loss", save_best_only=True, verbose=verbose),
        ],
    }[args.saves]()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--saves", default="best")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--bar", type=int, default=2, help="1: a bar, 2: a line per epoch")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rest", type=float, default=0.0, help="seconds that each epoch takes longer")
    args = parser.parse_args()
    keras.utils.set_random_seed(args.seed)
    generator = np.random.default_rng(args.seed)
    x = generator.normal(size=(640, 20)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0).astype("int32")
    model = keras.Sequential(
        [
            keras.layers.Input((20,)),
            keras.layers.Dense(96, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.summary()
    model.fit(
        x,
        y,
        validation_split=0.2,
        epochs=args.epochs,
        batch_size=32,
        verbose=args.bar,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: time.sleep(args.rest)), *callbacks(args)],
    )


if __name__ == "__main__":
    main()
