"""The table of services, and the page of one service."""
