"""A tide of inference and training in `multisched simulate`: the workload `gpuTide`."""
