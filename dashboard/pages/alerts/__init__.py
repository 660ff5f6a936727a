"""The page of alerts: what fires, who looks after it, and what fired."""
