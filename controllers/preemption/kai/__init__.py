"""Preemption for pods in KAI's queues, ahead of KAI's own rule: KAI selects victims in the cycle in which it finds no
room, but ignores pods with a scheduling gate.

In: pods, nodes, KAI's queues. Out: new pods that KAI would preempt for are gated at creation; the selected gang gets
notices and is evicted as a whole, as with plain pods, and the gates are removed. KAI gives the room to these pods.
"""
