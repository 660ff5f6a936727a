"""The page of GPUs that services could lend."""
