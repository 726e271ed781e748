"""PyTorch: a network as a module (baselines and oracle), and a backend that runs plans on CUDA streams."""
