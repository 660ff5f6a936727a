"""``kopt cost``: what GPUs cost and who used them, from what the meter recorded."""
