"""What pods say of their checkpoints: reported statuses, claims of their users, and answers to save requests."""
