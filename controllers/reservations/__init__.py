"""Reservations of future capacity in clusters with Kueue: idle GPUs are held by Jobs of ours, others use them until the
start where they end in time or can be stopped, and what does not end in time is reclaimed within the lead.

What is decided is in ``policies.reservations``; victims are selected as for lending (``policies.lending.victims``).
"""
