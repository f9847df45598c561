"""A program for torchrun: train, and let one worker be killed in the middle of the first try."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from zosam.lab.run import Run, run

if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1])

    def tick(done: int, of: int) -> None:
        first_try = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first_try and done == 13 and os.environ["RANK"] == "1":
            (out / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    run(Run(model="digits_net:width=4", epochs=2, batch_size=144, method="rigl:every=4"), out, tick=tick)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (out / f"threads of rank {os.environ['RANK']}").write_text("\n".join(threads))
