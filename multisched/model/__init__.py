"""Pure values: quantities, slim Kubernetes objects, selectors, resources, API server requests. No state, no I/O."""
