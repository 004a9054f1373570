"""Functions under torch.func and in forward mode: one rule for each kind of level, for each of the author's methods."""
