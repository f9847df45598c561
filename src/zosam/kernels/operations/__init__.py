"""One file per kind of operation: what it looks like in a model, and what the stages of the pipeline ask of it.

A new kind is a new file, named in `trace.MODULES` or `trace.CALLS`.

base         the words: buffers, views of them, `Step` and `Op`, the interface between an operation and the stages
edges        tensors that enter and leave a region
convolution  convolutions and linear layers
index        which weights of such a layer are active, and where each finds its input
dense        what torch computes of them: layers that stay dense, and whole weight gradients
timed        both, on random data, to see which is faster
shortcuts    bare shortcuts that skip pixels and add channels of zeros
norms        batch norm and layer norm
elementwise  activations, sums, channels side by side
pooling      windows and means over all pixels
dropping     dropout and its relatives
attention    torch's transformer layers, written out as the above
"""
