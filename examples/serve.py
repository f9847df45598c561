"""A sparse network saved without its zeros, loaded elsewhere, and served by kernels that skip them.

python serve.py             # ResNet-32 with random weights, 95 % of them zero: what matters here is time
python serve.py --small     # a small network, in seconds
"""

import argparse
from pathlib import Path

import torch

import zosam
from zosam import Magnitude
from zosam.lab import models


def main() -> None:
    ask = argparse.ArgumentParser(description="Save, load and serve a sparse network.")
    ask.add_argument("--small", action="store_true", help="a small network")
    ask.add_argument("--sparsity", type=float, default=0.95)
    ask.add_argument("--file", type=Path, default=Path("model.safetensors"))
    args = ask.parse_args()

    torch.manual_seed(0)
    make, shape = (models.digits_net, (1, 8, 8)) if args.small else (models.resnet32, (3, 32, 32))

    # Where it was trained. Yours comes out of a training; this one is pruned on the spot.
    trained = make()
    Magnitude(trained, torch.optim.SGD(trained.parameters(), lr=0.1), args.sparsity, budget="erk")
    zosam.save(trained, args.file)

    # Where it is served: the file and the code of the network are enough. Each batch size is measured once.
    one, many = torch.randn(1, *shape), torch.randn(64, *shape)
    served = zosam.load(args.file, make(), example=[one, many])
    print(zosam.kernels.report(served))

    dense = trained.eval()
    with torch.inference_mode():
        for x in (one, many):
            torch.testing.assert_close(served(x), dense(x), rtol=1e-3, atol=1e-4)  # the same answers
    for line in zosam.serve_bench(served, many, [1, 64]):
        print(f"batch {line['batch']}: dense {line['torch_ms']:.2f} ms, sparse {line['kernels_ms']:.2f} ms")
    dense_bytes = sum(t.nbytes for t in trained.state_dict().values())
    print(f"{args.file}: {args.file.stat().st_size:,} bytes of {dense_bytes:,}")


if __name__ == "__main__":
    main()
