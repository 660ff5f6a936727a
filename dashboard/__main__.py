"""``python -m kopt.dashboard``: the pages as a process of their own."""

import os

from kopt.dashboard.app import serve
from kopt.serving.environment import load_settings

if __name__ == "__main__":
    serve(load_settings(), hosts=os.environ.get("KOPT_PAGES_HOSTS", "").split(","))
