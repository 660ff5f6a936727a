"""``python -P -m kopt.cli.pages``: the web pages in a process of their own, until SIGTERM."""

import os
import sys

from kopt.serving.environment import load_settings


def main() -> int:
    """Serve the pages where the settings say."""
    import uvicorn

    from kopt.dashboard.app import create_app

    settings = load_settings()
    more = [name.strip() for name in os.environ.get("KOPT_PAGES_HOSTS", "").split(",")]
    app = create_app(settings, hosts=[name for name in more if name])
    uvicorn.run(app, host=settings.api_host, port=settings.pages_port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
