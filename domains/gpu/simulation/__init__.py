"""What the gpu domain adds to `multisched simulate`: a trace of GPU pods that arrive and stay."""
