"""Losses of logits that are the product of hidden states and a weight, without these logits in memory; and what they
share with the log-probabilities of tokens: a few numbers for each row of logits (``csrc/core/class_block.h``).
:mod:`cudaloss.heads`, :mod:`cudaloss.distillation` and :mod:`cudaloss.contrast` call it.
"""

# The public functions and modules that have no row in the table of losses, and the files that have them.
PUBLIC = {
    "contrast": (["clip_loss", "info_nce_loss", "siglip_loss"], ["ClipLoss", "InfoNCELoss", "SigLipLoss"]),
    "distillation": (["linear_jsd_with_logits", "linear_sparse_cross_entropy", "sparse_cross_entropy"], []),
    "heads": (["linear_cross_entropy", "linear_token_log_prob", "token_log_prob"], ["LinearCrossEntropyLoss"]),
    "overlap": (["dice_bce_loss", "dice_ce_loss", "dice_loss", "tversky_loss"], []),
    "overlap_modules": ([], ["DiceBCELoss", "DiceCELoss", "DiceLoss", "TverskyLoss"]),
}
FUNCTIONS = sorted(name for functions, _ in PUBLIC.values() for name in functions)
MODULES = sorted(name for _, modules in PUBLIC.values() for name in modules)
