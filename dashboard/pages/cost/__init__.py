"""What GPUs cost: who used how much in a window, what was idle, budgets, prices, and a row down to its events."""
