"""Alert rules as data: what goes wrong around GPUs, when somebody should know, and what to do about it."""
