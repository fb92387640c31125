"""Behaviour of the API, tested on the embedded server and, with --cluster=real, on a real kube-apiserver."""
