"""The gpu domain's contribution to `multisched simulate`: a trace of GPU pods that arrive and stay."""
