"""The least torch that the compiled kernels run on, said once: the build targets its stable ABI."""

LEAST_TORCH = (2, 10)
