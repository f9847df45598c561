"""Sharpness-aware optimizers, each a `SharpnessAware` around any torch optimizer.

A method, or a part of one, is listed here once, by the line that imports it.
"""

from collections.abc import Callable

from zosam.optim import schedules as schedules
from zosam.optim.base import SharpnessAware as SharpnessAware
from zosam.optim.controls import MSAM as MSAM
from zosam.optim.controls import S2SAM as S2SAM
from zosam.optim.controls import SGD as SGD
from zosam.optim.controls import RandomSAM as RandomSAM
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
from zosam.optim.sam import ASAM as ASAM
from zosam.optim.sam import SAM as SAM
from zosam.optim.scale import Scale as Scale
from zosam.optim.zosam import ZOSAM as ZOSAM
from zosam.optim.zosam import PaperZOSAM as PaperZOSAM

_imported = [thing for thing in globals().values() if isinstance(thing, type) and thing.__module__.startswith(__name__)]
OPTIMIZERS: dict[str, type[SharpnessAware]] = {
    cls.__name__.lower(): cls for cls in _imported if issubclass(cls, SharpnessAware) and cls is not SharpnessAware
}
PARTS: dict[str, type] = {cls.__name__.lower(): cls for cls in _imported if not issubclass(cls, SharpnessAware)}
PRESETS: dict[str, Callable[..., SharpnessAware]] = {"zosam.fast": ZOSAM.fast}
