"""``kopt crds``: custom resource definitions of this version in a cluster."""
