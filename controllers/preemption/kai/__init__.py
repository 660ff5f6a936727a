"""Pods of KAI's queues, ahead of its own rule: it takes victims in the same cycle in which it finds no room, but does
not look at pods with a scheduling gate.

In: pods, nodes, KAI's queues. Out: new pods that KAI would pre-empt for are gated as they are created; the chosen gang
is told and evicted as one, as with plain pods, and the gates are taken away. KAI gives them the room that comes free.
"""
