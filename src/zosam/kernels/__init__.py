"""Real sparse compute on CPU, behind one function: accelerate(model, sparse, example). The modules, in order:

accelerate  the public functions: what they refuse, what they report
dispatch    stands in the place of a module's forward: the kernels where they gain, its own code elsewhere
trace       follow the module's code with torch.fx, and say of each operation what it is to the kernels
regions     find the sparse layers, and the stretches of operations around them that the kernels understand
choose      measure region by region, and layer by layer, which way is faster; remember it
timing      how long things take beside one another, told in few tries and on a busy machine
plan        turn the steps of a region into a forward and a backward program of operations
memory      give every buffer of these programs its place in one arena
lower       write each program as one list of calls, which C walks at one go and which follows the masks
execute     run a region as one autograd function, with programs per input size and memory on lease
build       compile, find and load the C kernels, which lie in c/: tiles.h is the walk over active weights
operations  one file per kind of operation: what it looks like in a model, and what the stages above ask of it
"""

from zosam.kernels.accelerate import accelerate, accelerate_at_first_batch, choices, gained, in_use, report, restore
from zosam.kernels.build import doctor
from zosam.kernels.choose import forget

__all__ = [
    "accelerate", "accelerate_at_first_batch", "choices", "doctor", "forget", "gained", "in_use", "report", "restore",
]  # fmt: skip
