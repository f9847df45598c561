"""The history of our speed: one file for each machine and commit, and a comparison of two.

    python benchmarks/history.py measure            # writes results/history/MACHINE-COMMIT.json
    python benchmarks/history.py compare OLD NEW    # what became faster or slower; ends with 1 if anything is slower

A figure is a ratio: the time of a dense SGD step of torch / the time of the contestant, right after each other, by the
CPU time of one thread. So other work on the machine hits both alike. It is the median over rounds with its 95 %
interval. Two figures differ if their intervals do not meet; figures of different CPUs are not compared.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from chart import machine
from masks import updating
from train_step import NETWORKS, dense, sparse

from zosam.lab.measure.throughput import beside

ROOT = Path(__file__).resolve().parents[1]
NETWORK = "resnet20"
SAME = ("cpu", "kernels", "network", "batch")  # what must agree before two files may be compared


def contestants() -> dict[str, Any]:
    """What is timed, and after how many steps its costs repeat."""
    found: dict[str, Any] = {"dense SGD": (dense(NETWORK), 1)}
    for level in (0.9, 0.98):
        for kind in ("SGD", "SAM", "ZO-SAM", "ZO-SAM fast"):
            step, _ = sparse(NETWORK, level, kind, fast=True)
            found[f"{kind} on the kernels, {level:.0%}"] = (step, 2 if kind == "ZO-SAM fast" else 1)
    found["ZO-SAM without kernels, 90%"] = (sparse(NETWORK, 0.9, "ZO-SAM", fast=False)[0], 1)
    found["update of the masks by RigL, 90%"] = (updating("rigl", NETWORKS[NETWORK][0]())[0], 1)
    return found


def commit() -> str:
    """The commit that is checked out, which must be all there is: a figure belongs to a commit."""
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        sys.exit(
            f"src/ is not as committed, so these figures would belong to no commit:\n{changed}Commit, or give --out."
        )
    words = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def measure(rounds: int, out: Path | None) -> Path:
    """Measure what is checked out, and write it down."""
    name = "uncommitted" if out else commit()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    turns = contestants()
    reference = dense(NETWORK)
    speed = beside(turns, reference, rounds=rounds, clock=time.process_time)
    record = machine() | {"commit": name, "network": NETWORK, "batch": NETWORKS[NETWORK][1], "rounds": rounds}
    record["figures"] = {
        who: {"ratio": round(s.median, 4), "interval": [round(end, 4) for end in s.interval]}
        for who, s in speed.items()
    }
    slug = re.sub(r"[^a-z0-9]+", "-", f"{record['cpu']}-{record['kernels'].split(',')[0]}".lower()).strip("-")
    path = out or ROOT / "results" / "history" / f"{slug}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def compare(old: dict[str, Any], new: dict[str, Any]) -> tuple[list[str], bool]:
    """The lines of a table, and whether anything is slower."""
    other = [what for what in SAME if old[what] != new[what]]
    if other:
        told = "; ".join(f"{what}: {old[what]} and {new[what]}" for what in other)
        raise ValueError(f"these two cannot be compared ({told}). Measure both commits on one machine.")
    lines, slower = [f"{'':36}{old['commit']:>12}{new['commit']:>12}{'change':>9}"], False
    for who in {**old["figures"], **new["figures"]}:
        a, b = old["figures"].get(who), new["figures"].get(who)
        verdict = "new" if a is None else "gone" if b is None else ""
        if a and b:
            if b["interval"][1] < a["interval"][0]:
                verdict, slower = "slower", True
            elif b["interval"][0] > a["interval"][1]:
                verdict = "faster"
        cells = [f"{found['ratio']:.2f}" if found else "" for found in (a, b)]
        cells.append(f"{b['ratio'] / a['ratio'] - 1:+.1%}" if a and b else "")
        lines.append(f"{who:36}{cells[0]:>12}{cells[1]:>12}{cells[2]:>9}  {verdict}".rstrip())
    return lines, slower


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doing = parser.add_subparsers(dest="doing", required=True)
    measuring = doing.add_parser("measure", help="measure the commit that is checked out")
    measuring.add_argument("--rounds", type=int, default=15)
    measuring.add_argument("--out", type=Path, help="a file of your own, also for what is not committed")
    comparing = doing.add_parser("compare", help="compare two files")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    given = parser.parse_args(words)
    if given.doing == "measure":
        print(measure(given.rounds, given.out))
        return 0
    try:
        lines, slower = compare(*(json.loads(path.read_text()) for path in (given.old, given.new)))
    except (OSError, ValueError, KeyError) as error:
        parser.error(str(error))
    print("\n".join(lines))
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
