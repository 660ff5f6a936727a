"""``python -m kopt.dashboard``: the pages as a process of their own, until SIGTERM."""

import os

from kopt.dashboard.app import serve
from kopt.serving.environment import load_settings

if __name__ == "__main__":
    more = [name.strip() for name in os.environ.get("KOPT_PAGES_HOSTS", "").split(",")]
    serve(load_settings(), hosts=[name for name in more if name])
