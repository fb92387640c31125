"""Behaviour of the API, tested on the embedded server and, with --kubeconfig, on a real kube-apiserver."""
