"""Proximal policy optimisation on pictures of a made-up environment: rollouts without gradient, then several epochs."""
import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical


def layer_init(layer, std=2**0.5, bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU(),
            nn.Flatten(), layer_init(nn.Linear(64 * 7 * 7, 512)), nn.ReLU(),
        )
        self.actor = layer_init(nn.Linear(512, actions), std=0.01)
        self.critic = layer_init(nn.Linear(512, 1), std=1)

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden).flatten()


class Screens:
    """num_envs games whose screens are noise and whose rewards are coin flips."""

    def __init__(self, num_envs):
        self.num_envs = num_envs

    def step(self, action=None):
        obs = torch.randint(0, 256, (self.num_envs, 4, 84, 84), dtype=torch.uint8)
        return obs.float(), torch.rand(self.num_envs).round(), (torch.rand(self.num_envs) < 0.01).float()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--num-envs", type=int, default=64)
    ap.add_argument("--num-steps", type=int, default=64)
    ap.add_argument("--num-minibatches", type=int, default=4)
    ap.add_argument("--update-epochs", type=int, default=2)
    ap.add_argument("--num-updates", type=int, default=2)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    envs, agent = Screens(args.num_envs), Agent(18).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    shape = (args.num_steps, args.num_envs)
    obs = torch.zeros((*shape, 4, 84, 84), device=device)
    actions, logprobs, rewards, dones, values = (torch.zeros(shape, device=device) for _ in range(5))
    next_obs = envs.step()[0].to(device)
    next_done = torch.zeros(args.num_envs, device=device)
    for update in range(args.num_updates):
        for step in range(args.num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, values[step] = agent.get_action_and_value(next_obs)
            actions[step], logprobs[step] = action, logprob
            next_obs, reward, next_done = (t.to(device) for t in envs.step(action))
            rewards[step] = reward
        with torch.no_grad():
            last = agent.get_action_and_value(next_obs)[3]
            advantages, gae = torch.zeros_like(rewards), 0
            for t in reversed(range(args.num_steps)):
                alive = 1.0 - (next_done if t == args.num_steps - 1 else dones[t + 1])
                following = last if t == args.num_steps - 1 else values[t + 1]
                gae = rewards[t] + 0.99 * following * alive - values[t] + 0.99 * 0.95 * alive * gae
                advantages[t] = gae
            returns = (advantages + values).flatten()
        total = args.num_steps * args.num_envs
        for _ in range(args.update_epochs):
            for pick in torch.randperm(total, device=device).chunk(args.num_minibatches):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    obs.flatten(0, 1)[pick], actions.flatten()[pick].long())
                ratio = (newlogprob - logprobs.flatten()[pick]).exp()
                adv = advantages.flatten()[pick]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.9, 1.1)).mean()
                loss = policy - 0.01 * entropy.mean() + 0.5 * (newvalue - returns[pick]).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(f"update {update}: loss {loss.item():.4f}")
