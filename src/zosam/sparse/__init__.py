"""Sparse-training methods: one file per method, each a `Sparsity` bound to a model and its optimizer.

A method is listed here once, by the line that imports it. The room, from what all share to the methods:

base             Sparsity: what a method says, and what methods are made of
masks            how masks are kept: hooks on gradients and around steps
dense_gradients  whole gradients, kept aside while the optimizer sees them masked
updates          methods whose masks change every so many steps
dynamic          drop some weights of each layer, grow as many elsewhere
static           score every weight once, keep the best
budgets          how many weights each layer keeps
patterns         structure in a mask: single weights, N of every M, blocks
prunable         which weights of a model can be pruned
top_k            the k best of many scores
base_optimizers  the optimizers that a method works on
agreement        ranks that train together have the same masks
state            what is saved of a method, in the optimizer's state_dict
save             sparse models in files
report           what users ask: how sparse, where, at what cost
flops            the operations of inference and of a training step
ever_active      how far a moving mask has explored
random           Random: by lot
magnitude        Magnitude: the largest weights
snip             SNIP: by what removing a weight does to the loss
grasp            GraSP: by the flow of the gradient
synflow          SynFlow: a hundred times, without data
lth              LTH: train, prune, rewind, train again
gmp              GMP: dense at first, pruned little by little
set              SET: grow at random
deepr            DeepR: fixed signs; a weight that crosses zero sleeps
dsr              DSR: one threshold for all layers
snfs             SNFS: where the momentum is largest
rigl             RigL: where the gradient is largest
svite            SViTE: RigL for vision transformers
topkast          Top-KAST: a few more weights learn than compute
mest             MEST: by weight and gradient, calmer in two stages
"""

from zosam.sparse.base import Sparsity as Sparsity
from zosam.sparse.deepr import DeepR as DeepR
from zosam.sparse.dsr import DSR as DSR
from zosam.sparse.gmp import GMP as GMP
from zosam.sparse.grasp import GraSP as GraSP
from zosam.sparse.lth import LTH as LTH
from zosam.sparse.magnitude import Magnitude as Magnitude
from zosam.sparse.mest import MEST as MEST
from zosam.sparse.random import Random as Random
from zosam.sparse.rigl import RigL as RigL
from zosam.sparse.set import SET as SET
from zosam.sparse.snfs import SNFS as SNFS
from zosam.sparse.snip import SNIP as SNIP
from zosam.sparse.svite import SViTE as SViTE
from zosam.sparse.synflow import SynFlow as SynFlow
from zosam.sparse.topkast import TopKAST as TopKAST

_imported = [thing for thing in globals().values() if isinstance(thing, type) and issubclass(thing, Sparsity)]
METHODS: dict[str, type[Sparsity]] = {cls.__name__.lower(): cls for cls in _imported if cls is not Sparsity}
