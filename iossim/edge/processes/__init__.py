"""Networks divided among processes that send each other messages by torch.distributed (gloo)."""
