"""Losses of logits that are the product of hidden states and a weight, without these logits in memory; and what they
share with the log-probabilities of tokens: a few numbers for each row of logits (``csrc/core/class_block.h``).
:mod:`cudaloss.heads` calls it.
"""

# The public names of cudaloss.heads.
FUNCTIONS = [
    "linear_cross_entropy",
    "linear_jsd_with_logits",
    "linear_sparse_cross_entropy",
    "linear_token_log_prob",
    "sparse_cross_entropy",
    "token_log_prob",
]
MODULES = ["LinearCrossEntropyLoss"]
