"""Sharpness-aware optimizers, each a `SharpnessAware` around any torch optimizer.

A method, or a part of one, is listed here once, by the line that imports it. The room, from the step outwards:

base            SharpnessAware: the step as a transaction
ascent          what methods are made of: gradients, losses, directions, lengths, numbers
passes          one pass through the model, forward only or with its gradient; backward, as closures call it
closure_checks  what is asked of closures
graphs          the leaves of a graph, and how little of one a pass without gradient needs
snapshot        buffers and random streams, taken before a pass and put back; who else has written the weights
perturb         where a perturbation is added to the weights, and where it is undone
masked          who sets a weight's mask, asks for it, lets go of it
vector          which weights are active, and these as one vector
filters         the rows of weights that share an output: norms, sizes and sums
scale           in which metric a perturbation is rho long
scaling         notices that the loss of a climb was scaled
schedules       how rho goes over the training
probes          what a zero-order ascent probes along, and how it decides
pair            candidates that are run with a graph each
zosam           ZO-SAM, and the paper's Algorithm 1 to the letter
sam             SAM and ASAM
esam            ESAM: some tensors, and the samples that are hurt most
looksam         LookSAM: climb every k steps
gsam            GSAM: close the gap between the loss and its perturbed value
rwp             RWP and ARWP: random noise, filter by filter; NoisySAM: SAM under it
controls        no perturbation at all, and those that cost no extra pass
recall          what a method remembers from step to step
saved           how an optimizer is saved, loaded and copied
state_hooks     state of ours in the base optimizer's state_dict
guards          what a loop may do wrong without noticing
"""

from collections.abc import Callable

from zosam.optim import schedules as schedules
from zosam.optim.base import SharpnessAware as SharpnessAware
from zosam.optim.controls import MSAM as MSAM
from zosam.optim.controls import S2SAM as S2SAM
from zosam.optim.controls import RandomSAM as RandomSAM
from zosam.optim.controls import Unperturbed as Unperturbed
from zosam.optim.esam import ESAM as ESAM
from zosam.optim.gsam import GSAM as GSAM
from zosam.optim.looksam import LookSAM as LookSAM
from zosam.optim.probes import Central as Central
from zosam.optim.probes import Coordinates as Coordinates
from zosam.optim.probes import Gaussian as Gaussian
from zosam.optim.probes import LastGradient as LastGradient
from zosam.optim.probes import Momentum as Momentum
from zosam.optim.probes import Pair as Pair
from zosam.optim.probes import Rademacher as Rademacher
from zosam.optim.probes import Subspace as Subspace
from zosam.optim.probes import Worst as Worst
from zosam.optim.rwp import RWP as RWP
from zosam.optim.rwp import NoisySAM as NoisySAM
from zosam.optim.sam import ASAM as ASAM
from zosam.optim.sam import SAM as SAM
from zosam.optim.scale import Scale as Scale
from zosam.optim.zosam import ZOSAM as ZOSAM
from zosam.optim.zosam import PaperZOSAM as PaperZOSAM

_imported = [thing for thing in globals().values() if isinstance(thing, type) and thing.__module__.startswith(__name__)]
OPTIMIZERS: dict[str, type[SharpnessAware]] = {
    cls.method().lower(): cls for cls in _imported if issubclass(cls, SharpnessAware) and cls is not SharpnessAware
}
PARTS: dict[str, type] = {cls.__name__.lower(): cls for cls in _imported if not issubclass(cls, SharpnessAware)}
PRESETS: dict[str, Callable[..., SharpnessAware]] = {"zosam.fast": ZOSAM.fast}
