"""What GPU-hours were used for, and how healthy the cluster was."""
