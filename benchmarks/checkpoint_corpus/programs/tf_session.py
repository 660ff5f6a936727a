"""A regression in a MonitoredTrainingSession of TensorFlow's first version, as estimators run it."""

import argparse
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    v1.disable_eager_execution()
    v1.logging.set_verbosity(v1.logging.INFO)
    generator = np.random.default_rng(0)
    x = v1.placeholder(tf.float32, [None, 32])
    w = v1.get_variable("w", [32, args.width])
    u = v1.get_variable("u", [args.width, 1])
    loss = tf.reduce_mean((tf.tanh(x @ w) @ u - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
    step = v1.train.get_or_create_global_step()
    train = v1.train.AdamOptimizer(1e-3).minimize(loss, global_step=step)
    hooks = [
        v1.train.StopAtStepHook(last_step=args.steps),
        v1.train.LoggingTensorHook({"loss": loss, "step": step}, every_n_iter=10),
    ]
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=args.out,
        save_checkpoint_steps=args.every,
        hooks=hooks,
        save_summaries_steps=None,
        save_summaries_secs=None,
    ) as session:
        while not session.should_stop():
            session.run(train, {x: generator.normal(size=(64, 32))})


if __name__ == "__main__":
    main()
