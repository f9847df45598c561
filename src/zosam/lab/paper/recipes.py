"""From the words of the paper to a training: a network, data, a method, an optimizer and a sparsity make a `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from zosam.lab.paper.source import read
from zosam.lab.run import Run
from zosam.names import find

TIERS = ("tiny", "small", "medium", "paper")
Says = Literal["direction", "value"]
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Tier:
    """A scale to train at: what stands in for each network, data set and method of the paper."""

    name: str
    says: Says
    """What its results can say of a printed number: its value, or only which of two is larger."""
    note: str
    goal: float
    """The accuracy that epochs_to_90 waits for."""
    without: tuple[str, ...]
    """Measures that make no sense here."""
    pictures: int | None
    """How many of each part of CIFAR-10-C are tested; None: all."""
    common: Fields
    networks: Mapping[str, Fields]
    data: Mapping[str, Fields]
    methods: Mapping[str, Fields]
    optimizers: Mapping[str, Fields]
    arms: Mapping[str, Fields]

    @property
    def models(self) -> set[str]:
        """The names of the networks that it trains."""
        return {str({**self.common, **own}["model"]).partition(":")[0] for own in self.networks.values()}

    def run(
        self,
        network: str,
        data: str,
        method: str,
        optimizer: str,
        sparsity: float,
        length: float = 1.0,
        diagnostics: bool = False,
        arm: str | None = None,
    ) -> Run | None:
        """The training at seed 0, `length` times as long as the recipe says; None if the tier has nothing like it."""
        if network not in self.networks or data not in self.data:
            return None
        arms = {name: a["run"] for name, a in self.arms.items() if network in a["networks"]}
        if arm is not None and arm not in arms:
            return None
        own = dict(self.networks[network])
        methods, on = {**self.methods, **own.pop("methods", {})}, {**self.data, **own.pop("on", {})}
        fields = {
            **self.common,
            **own,
            **on[data],
            **methods.get(method, {"method": method}),
            **find(read("recipes")["optimizers"], optimizer, "optimizer"),
            **self.optimizers.get(optimizer, {}),
            **({} if arm is None else arms[arm]),
        }
        del fields["label"]
        return Run(**fields, sparsity=sparsity, length=length, diagnostics=diagnostics)


def tier(name: str) -> Tier:
    """The tier called `name`."""
    content = find({t: read("recipes")[t] for t in TIERS}, name, "tier")
    return Tier(
        name=name,
        says=content["says"],
        note=content["note"],
        goal=content["goal"],
        without=tuple(content["without"]),
        pictures=content.get("pictures"),
        common=content["run"],
        networks=content["networks"],
        data=content["data"],
        methods=content["methods"],
        optimizers=content.get("optimizers", {}),
        arms=content.get("arms", {}),
    )


def label(optimizer: str) -> str:
    """How an optimizer of the tables is called in print."""
    return str(find(read("recipes")["optimizers"], optimizer, "optimizer")["label"])


@cache
def labels() -> dict[str, str]:
    """How optimizers are called in print, by how they are written with all their settings."""
    found = read("recipes")["optimizers"].values()
    return {Run(optimizer=o["optimizer"]).optimizer.whole: str(o["label"]) for o in found}
