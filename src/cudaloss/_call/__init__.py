"""A call of a loss once its arguments are checked, and how it is packed for the private ops.

The reference, the ops and the losses of DTensors pass it on."""
