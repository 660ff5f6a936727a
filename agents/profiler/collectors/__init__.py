"""Sources of GPU metrics of a running machine, one module each."""
