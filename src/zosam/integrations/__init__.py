"""Small bridges to trainers that own the training loop."""
