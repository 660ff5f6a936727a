"""``python -m kopt.cli.local.pages``: see ``serve``."""

import os

from kopt.cli.local.pages.serve import main

if __name__ == "__main__":
    main(os.environ)
