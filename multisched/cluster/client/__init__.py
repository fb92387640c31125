"""The API client of the embedded cluster's kubelets and controllers."""
