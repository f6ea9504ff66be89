"""Each loss in plain PyTorch: the definition. The files are the kinds of losses.

The ops fall back to it; second derivatives and transforms use it; tests compare with it."""
