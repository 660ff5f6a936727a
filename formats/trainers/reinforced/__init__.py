"""Trainers that learn by reinforcement with several models on the same GPUs: actor, critic, reference, reward, engine.

Each module reads a trainer's own options and makes a ``Recipe`` of the actor, with what lies beside it.
"""
