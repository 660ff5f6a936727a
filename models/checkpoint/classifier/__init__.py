"""The line classifier: from a message to what it says of checkpoints, and how it is fitted."""
