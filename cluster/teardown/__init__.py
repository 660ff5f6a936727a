"""Everything of ours off: `kopt off`."""
