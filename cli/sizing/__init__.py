"""``kopt estimate``, ``profile``, ``recommend``, ``explain``, ``diff`` and ``apply``."""
