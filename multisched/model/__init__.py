"""Pure values: quantities, slim Kubernetes objects, selectors, resources, and the shape of the wire. No state, no I/O."""
