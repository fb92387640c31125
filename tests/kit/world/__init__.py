"""The simulated cluster as its users, kubelets and controllers change it, only through the API."""
