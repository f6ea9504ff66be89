"""The private ops and what is around them: schemas, the nodes of autograd, errors, and which calls the kernels take.

The public ops, heads and losses of DTensors call them."""
