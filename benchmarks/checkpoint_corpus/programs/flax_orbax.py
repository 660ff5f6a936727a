"""A training loop in JAX whose state Orbax's CheckpointManager saves, waiting for it or not."""

import argparse
import time

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from absl import logging


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--info", action="store_true")
    parser.add_argument("--step-seconds", type=float, default=0.03)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    logging.set_verbosity(logging.INFO if args.info else logging.WARNING)
    logging.use_absl_handler()
    key = jax.random.PRNGKey(0)
    params = {f"layer_{i}": jax.random.normal(key, (128, 128)) * 0.05 for i in range(3)}
    optimizer = optax.adamw(1e-3)
    state = {"params": params, "opt": optimizer.init(params)}

    def loss_of(params, x):
        y = x
        for i in range(3):
            y = jnp.tanh(y @ params[f"layer_{i}"])
        return jnp.mean((y - x) ** 2)

    @jax.jit
    def train(state, x):
        loss, gradient = jax.value_and_grad(loss_of)(state["params"], x)
        updates, opt = optimizer.update(gradient, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, loss

    options = ocp.CheckpointManagerOptions(
        max_to_keep=args.keep, save_interval_steps=args.every, enable_async_checkpointing=not args.sync
    )
    with ocp.CheckpointManager(args.out, options=options) as manager:
        first = 0
        if args.resume and manager.latest_step() is not None:
            first = manager.latest_step()
            state = manager.restore(first, args=ocp.args.StandardRestore(state))
            print(f"Restored checkpoint from step {first}")
        for step in range(first + 1, args.steps + 1):
            key, now = jax.random.split(key)
            began = time.time()
            state, loss = train(state, jax.random.normal(now, (32, 128)))
            time.sleep(args.step_seconds)
            if step % 5 == 0:
                text = f"completed step: {step}, seconds: {time.time() - began:.3f}, loss: {float(loss):.3f}"
                logging.info(text) if args.info else print(text)
            manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()


if __name__ == "__main__":
    main()
