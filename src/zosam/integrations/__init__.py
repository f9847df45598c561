"""Small bridges to trainers that own the training loop.

windows         what every bridge does: climb once for several micro-batches
lightning       Lightning, by a callback
transformers    transformers' Trainer
hf_accelerate   accelerate
"""
