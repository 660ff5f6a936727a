"""Reinforcement learning with Stable-Baselines3, saving by its callbacks."""

import argparse

import gymnasium
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--algorithm", default="PPO", choices=["PPO", "A2C"])
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("--eval", action="store_true")
    parser.add_argument("--final", action="store_true")
    args = parser.parse_args()
    model = {"PPO": PPO, "A2C": A2C}[args.algorithm](
        "MlpPolicy",
        gymnasium.make("CartPole-v1"),
        verbose=1,
        device="cpu",
        seed=0,
        n_steps={"PPO": 256, "A2C": 16}[args.algorithm],
    )
    callbacks = [CheckpointCallback(args.every, args.out, name_prefix="rl_model", verbose=args.verbose)]
    if args.eval:
        callbacks.append(
            EvalCallback(
                Monitor(gymnasium.make("CartPole-v1")),
                best_model_save_path=args.out,
                eval_freq=args.every,
                n_eval_episodes=3,
            )
        )
    model.learn(args.steps, callback=callbacks, log_interval=1 if args.algorithm == "PPO" else 20)
    if args.final:
        model.save(f"{args.out}/final_model")
        print("Training finished, final model saved")


if __name__ == "__main__":
    main()
