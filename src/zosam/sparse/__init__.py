"""Sparse-training methods: one file per method, each a `Sparsity` bound to a model and its optimizer.

A method is listed here once, by the line that imports it.
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
