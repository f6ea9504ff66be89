"""The oldest torch that the compiled kernels run on, in one place: the build targets its stable ABI."""

LEAST_TORCH = (2, 10)
