"""The job domain: the whole program with controllers and fake kubelets, in virtual time."""
