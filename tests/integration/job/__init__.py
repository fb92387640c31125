"""GPU dialects with their device plugins: the whole program, fake kubelets and plugins in virtual time."""
