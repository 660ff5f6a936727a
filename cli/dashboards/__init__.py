"""``kopt dashboards``."""
