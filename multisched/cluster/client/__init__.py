"""How kubelets and controllers of the embedded cluster speak to its API server."""
