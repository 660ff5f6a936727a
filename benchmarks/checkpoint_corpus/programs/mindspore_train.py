"""A classifier with MindSpore's Model, whose ModelCheckpoint saves without a word."""

import argparse

import mindspore
import numpy as np
from mindspore import dataset, nn, train


def rows(count):
    generator = np.random.default_rng(0)
    for _ in range(count):
        x = generator.normal(size=24).astype("float32")
        yield x, np.array(x[:2].sum() > 0, dtype="int32")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
    net = nn.SequentialCell(nn.Dense(24, 192), nn.ReLU(), nn.Dense(192, 2))
    model = train.Model(net, nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 1e-3), metrics={"acc"})
    data = dataset.GeneratorDataset(list(rows(640)), ["x", "y"], shuffle=False).batch(16)
    config = train.CheckpointConfig(save_checkpoint_steps=args.every, keep_checkpoint_max=5)
    saver = train.ModelCheckpoint("net", args.out, config)
    model.train(
        args.epochs, data, callbacks=[train.LossMonitor(5), train.TimeMonitor(), saver], dataset_sink_mode=False
    )


if __name__ == "__main__":
    main()
