"""The fake kubelets of the embedded cluster."""
