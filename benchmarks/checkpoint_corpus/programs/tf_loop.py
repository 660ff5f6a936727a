"""A loop of TensorFlow's second version with a CheckpointManager, as its guides write it."""

import argparse
import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "1"
import tensorflow as tf


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--epochs", action="store_true", help="speak of epochs, as the guide to translation does")
    args = parser.parse_args()
    model = tf.keras.Sequential([tf.keras.layers.Input((32,)), tf.keras.layers.Dense(128), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(1e-3)
    counter = tf.Variable(1)
    checkpoint = tf.train.Checkpoint(step=counter, optimizer=optimizer, net=model)
    manager = tf.train.CheckpointManager(checkpoint, args.out, max_to_keep=3)
    checkpoint.restore(manager.latest_checkpoint)
    print(f"Restored from {manager.latest_checkpoint}" if manager.latest_checkpoint else "Initializing from scratch.")
    started = time.time()
    for step in range(1, args.steps + 1):
        x = tf.random.normal((32, 32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - tf.reduce_sum(x, 1, keepdims=True)) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        counter.assign_add(1)
        if args.epochs and step % 2 == 0:
            print(f"Epoch {step // args.every + 1} Batch {step % args.every} Loss {loss:.4f}")
        if step % args.every == 0:
            path = manager.save(checkpoint_number=step)
            if args.epochs:
                print(f"Saving checkpoint for epoch {step // args.every} at {path}")
                print(f"Time taken for 1 epoch: {time.time() - started:.2f} secs\n")
                started = time.time()
            else:
                print(f"Saved checkpoint for step {step}: {path}")
                print(f"loss {loss.numpy():1.2f}")


if __name__ == "__main__":
    main()
