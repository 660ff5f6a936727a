"""The extender's books: which pod holds which GPUs, what nodes have, and where gangs are."""
