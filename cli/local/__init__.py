"""``kopt up`` and what it starts on one machine."""
