"""The simulated cluster as its users, kubelets and controllers make it, over the API alone."""
