"""A classifier with the high-level interface of PaddlePaddle, which saves every few epochs."""

import argparse

import numpy as np
import paddle


class Data(paddle.io.Dataset):
    def __init__(self, count):
        generator = np.random.default_rng(0)
        self.x = generator.normal(size=(count, 24)).astype("float32")
        self.y = (self.x[:, :2].sum(1) > 0).astype("int64")[:, None]

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def __len__(self):
        return len(self.x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--verbose", type=int, default=2)
    parser.add_argument("--early", action="store_true")
    args = parser.parse_args()
    paddle.seed(0)
    net = paddle.nn.Sequential(paddle.nn.Linear(24, 256), paddle.nn.ReLU(), paddle.nn.Linear(256, 2))
    model = paddle.Model(net)
    model.prepare(
        paddle.optimizer.Adam(1e-3, parameters=net.parameters()), paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy()
    )
    callbacks = [paddle.callbacks.EarlyStopping("acc", patience=50, save_best_model=True)] if args.early else []
    model.fit(
        Data(640),
        Data(128),
        batch_size=32,
        epochs=args.epochs,
        save_dir=args.out,
        save_freq=1,
        verbose=args.verbose,
        log_freq=5,
        callbacks=callbacks,
    )


if __name__ == "__main__":
    main()
