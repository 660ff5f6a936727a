"""``kopt alerts``."""
