"""The runs behind the example report: four optimizers on the digits, dense and with fixed random masks, three seeds.

    python benchmarks/digits_example.py [--runs runs] [--out results/digits_example/runs.jsonl]
    zosam figure surface-zosam --tier tiny --accelerate --into results/digits_example/figures   # masks, features too

It shows what a report looks like. 360 test pictures tell no two optimizers apart.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from zosam.lab.paper.results_store import add_lines, line
from zosam.lab.run import Run, run

NETWORKS = {
    "dense": Run(method="dense"),
    "90 %": Run(method="random", sparsity=0.9),
    "95 %": Run(method="random", sparsity=0.95),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("results/digits_example/runs.jsonl"))
    arguments = parser.parse_args()
    for seed in range(3):
        for name, what in NETWORKS.items():
            for optimizer in ("sgd", "sam", "zosam", "rwp"):
                asked = replace(what, optimizer=optimizer, seed=seed)
                record = run(asked, arguments.runs, accelerate=name != "dense", threads=1)
                add_lines(arguments.out, {record.run.key: line(record)})
                print(f"{name}, {optimizer}, seed {seed}: {record.last['test_accuracy']:.2%}", flush=True)


if __name__ == "__main__":
    main()
