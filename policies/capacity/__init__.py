"""How many GPUs pools will need in weeks to come, and what to buy by when.

In: what was demanded hour by hour, and what is there. Out: a forecast by quantiles for each week, and a purchase.
"""
