"""Measurements of networks, steps and trainings; each is a module of its own, and changes nothing of what it measures.

estimate     means over seeds with their interval, and differences seed by seed
throughput   speed as a ratio, turn about in one process
flops        the operations of inference and of a training step, layer by layer
convergence  epochs, seconds and passes to a target accuracy, and curves over seeds
budget       accuracy at equal cost
variance     how much gradients vary, over the steps of a training or over batches at fixed weights
alignment    the cosine between where an optimizer climbs and the true gradient
sharpness    how far the loss rises around the weights, at worst and on average
hessian      the largest eigenvalues of the loss's curvature
landscape    the loss along filter-normalised random directions
features     what the layers see, and how concentrated it is
robustness   accuracy on corrupted pictures
masks_film   masks over a training, as pictures and as numbers

Figures are plain dicts that `json.dumps` takes; change their `name`, `title` and `note` as you like.
"""
