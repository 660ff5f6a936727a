"""How many GPUs pools will need, what to buy by when, and what the purchase would have changed."""
