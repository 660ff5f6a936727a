"""``kopt train``, ``models`` and ``mlflow``."""
