"""Replays a job trace with urgent arrivals that need room: what each pre-emption policy loses.

The truth (`runs`: when each job writes its checkpoints) and what a policy sees of it (`sight`: late, in part, with
mistakes) are apart; only the oracles among the `rivals` see the truth.
"""
