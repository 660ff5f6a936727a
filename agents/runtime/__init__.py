"""What every agent's process is made of."""
