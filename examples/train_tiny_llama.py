"""A small Llama-like model learns Python from Python's own sources: plain PyTorch, pullback.ops, and recompute.

    python examples/train_tiny_llama.py                 a minute or two on two cores
    python examples/train_tiny_llama.py --plot run.png  and a plot, with matplotlib
    python examples/train_tiny_llama.py --quick         a few steps of a smaller model

The same model is trained three times from the same seed on the same text, a step of each in turn, so that whatever
slows the machine down slows all of them. The losses are the same to rounding; what differs is what the graph keeps.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback
from pullback import ops


@dataclass(frozen=True)
class Sizes:
    """The model's and the batch's sizes: B batch, T tokens, H hidden, V vocabulary."""

    batch: int = 8
    tokens: int = 256
    hidden: int = 256
    wide: int = 704
    heads: int = 4
    layers: int = 4
    vocabulary: int = 16384


QUICK = Sizes(batch=2, tokens=32, hidden=32, wide=88, heads=2, layers=2, vocabulary=256)


@dataclass(frozen=True)
class Kit:
    """The operations that a model is built of; its weights are the same whichever they are."""

    rms_norm: Callable[[Tensor, list[int], Tensor], Tensor]
    rope: Callable[[Tensor, Tensor, Tensor], Tensor]
    swiglu: Callable[[Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    recompute: bool = False


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary embedding as most models write it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


PLAIN = Kit(F.rms_norm, rotated, lambda a, u: F.silu(a) * u, lambda x, w, t: F.cross_entropy(F.linear(x, w), t))
LEAN = Kit(ops.rms_norm, ops.rope, ops.swiglu, ops.linear_cross_entropy)
LEANEST = Kit(
    ops.rms_norm,
    ops.rope,
    ops.swiglu,
    lambda x, w, t: ops.linear_cross_entropy(x, w, t, form="recompute"),
    recompute=True,
)
KITS = {"plain PyTorch": PLAIN, "pullback.ops": LEAN, "and recompute": LEANEST}


# -- The model ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and a gated feed-forward, each after a norm and beside a residual."""

    def __init__(self, sizes: Sizes, kit: Kit) -> None:
        super().__init__()
        self.kit, self.heads = kit, sizes.heads
        self.norms = nn.ParameterList([torch.ones(sizes.hidden) for _ in range(2)])
        self.query, self.key, self.value, self.out = (
            nn.Linear(sizes.hidden, sizes.hidden, bias=False) for _ in range(4)
        )
        self.gate = nn.Linear(sizes.hidden, sizes.wide, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.wide, bias=False)
        self.down = nn.Linear(sizes.wide, sizes.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, H) to (B, T, H)."""
        shape, kit = [x.shape[-1]], self.kit
        normed = kit.rms_norm(x, shape, self.norms[0])
        projections = (self.query, self.key, self.value)
        q, k, v = (one(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in projections)
        q, k = kit.rope(q, cos, sin), kit.rope(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = kit.rms_norm(x, shape, self.norms[1])
        return x + self.down(kit.swiglu(self.gate(normed), self.up(normed)))


class Llama(nn.Module):
    """Embedding, blocks, a norm, and the loss of the next token."""

    def __init__(self, sizes: Sizes, kit: Kit) -> None:
        super().__init__()
        self.kit = kit
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.blocks = nn.ModuleList([Block(sizes, kit) for _ in range(sizes.layers)])
        self.norm = nn.Parameter(torch.ones(sizes.hidden))
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        width = sizes.hidden // sizes.heads
        rates = 10000 ** (-torch.arange(0, width, 2) / width)
        angle = torch.outer(torch.arange(sizes.tokens), rates).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss over tokens (B, T + 1): each but the last predicts the one after it."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            run = pullback.recompute(block) if self.kit.recompute else block
            x = run(x, self.cos, self.sin)
        x = self.kit.rms_norm(x, [x.shape[-1]], self.norm)
        return self.kit.loss(x.flatten(0, 1), self.head.weight, tokens[:, 1:].flatten())


# -- The text ----------------------------------------------------------------------------------------------------------


def text(vocabulary: int, characters: int = 3_000_000) -> Tensor:
    """Python's standard library as numbers: its most frequent words and signs, and 0 for every other."""
    pieces: list[str] = []
    left = characters
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        source = path.read_text("utf-8", errors="replace")[:left]
        pieces += re.findall(r"\w+|\s+|[^\w\s]", source)
        left -= len(source)
    known = [piece for piece, _ in Counter(pieces).most_common(vocabulary - 1)]
    number = {piece: index + 1 for index, piece in enumerate(known)}
    return torch.tensor([number.get(piece, 0) for piece in pieces])


def batches(tokens: Tensor, sizes: Sizes, seed: int = 0) -> Iterator[Tensor]:
    """Batches (B, T + 1) from anywhere in the text, for ever."""
    draw = random.Random(seed)
    while True:
        starts = [draw.randrange(len(tokens) - sizes.tokens - 1) for _ in range(sizes.batch)]
        yield torch.stack([tokens[start : start + sizes.tokens + 1] for start in starts])


# -- Training ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One model in training, and what was measured."""

    model: Llama
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    saved: int = 0
    peak: int = 0

    def step(self, batch: Tensor) -> None:
        """Forward, backward and update, with the clock running."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())

    def measure(self, batch: Tensor) -> None:
        """How many bytes the graph of one step keeps."""
        with pullback.saved_memory() as ledger:
            loss = self.model(batch)
        self.saved = ledger.total
        loss.backward()
        self.optimizer.zero_grad()


def resident(*, anew: bool = False) -> int:
    """The process's highest resident memory since it was last counted anew, in bytes; 0 where nothing says so."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def peak(sizes: Sizes, name: str) -> int:
    """The highest resident memory of a second step beyond what was there before it, in bytes; 0 where unknown."""
    run, batch = started(sizes, KITS[name]), torch.randint(sizes.vocabulary, (sizes.batch, sizes.tokens + 1))
    run.step(batch)
    run.optimizer.zero_grad()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return 0
    trim(0)  # what the first step freed would count as there before
    before = resident(anew=True)
    run.model(batch).backward()
    return max(0, resident() - before) if before else 0


def peak_of_its_own(name: str, *, quick: bool) -> int:
    """The same in a new process, whose memory nothing was freed from before."""
    command = [sys.executable, __file__, "--peak", name, *(["--quick"] if quick else [])]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def started(sizes: Sizes, kit: Kit) -> Run:
    """A model from the one seed."""
    torch.manual_seed(0)
    model = Llama(sizes, kit)
    return Run(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def train(sizes: Sizes, steps: int) -> dict[str, Run]:
    """Train each kit's model for so many steps, a step of each in turn in an order drawn anew."""
    runs = {name: started(sizes, kit) for name, kit in KITS.items()}
    source = batches(text(sizes.vocabulary), sizes)
    batch = next(source)
    for run in runs.values():
        run.measure(batch)
    order, draw = list(runs), random.Random(0)
    for _ in range(steps):
        batch = next(source)
        draw.shuffle(order)
        for name in order:
            runs[name].step(batch)
    return runs


# -- What came of it ---------------------------------------------------------------------------------------------------


def table(runs: dict[str, Run]) -> str:
    """A row for each run, with ratios to the first."""
    first = next(iter(runs.values()))
    lines = ["| | first loss | last loss | step time | saved MiB | ratio | peak MiB | ratio |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, run in runs.items():
        pairs = zip(run.seconds[1:], first.seconds[1:], strict=True)
        ratio = statistics.median([own / base for own, base in pairs] or [float("nan")])
        cells = [f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}", f"{ratio:.2f}"]
        for own, base in ((run.saved, first.saved), (run.peak, first.peak)):
            cells += [f"{own / 2**20:.1f}", f"{own / base:.2f}" if base else "?"]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def furthest(runs: dict[str, Run]) -> float:
    """The largest difference of a loss to plain PyTorch's at the same step, as a share of it."""
    plain, *others = (run.losses for run in runs.values())
    return max(abs(a - b) / b for other in others for a, b in zip(other, plain, strict=True))


def plot(runs: dict[str, Run], path: Path) -> None:
    """The losses over the steps, and the bytes, as a picture."""
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        raise SystemExit("A plot needs matplotlib: install it, or pullback with its extra: pullback[plot].") from None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for (name, run), style in zip(runs.items(), ("-", "--", ":"), strict=True):
        left.plot(run.losses, style, label=name)
    left.set(xlabel="step", ylabel="loss")
    left.legend()
    right.bar(list(runs), [run.saved / 2**20 for run in runs.values()])
    right.set_ylabel("kept for backward, MiB")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Train, and print what came of it."""
    parser = argparse.ArgumentParser(description="Train a small model with and without pullback.ops.")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="a smaller model, 4 steps")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw losses and bytes")
    parser.add_argument("--peak", choices=KITS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes, steps = (QUICK, 4) if options.quick else (Sizes(), options.steps)
    if options.peak:
        print(peak(sizes, options.peak))
        return
    start = time.perf_counter()
    runs = train(sizes, steps)
    for name, run in runs.items():
        run.peak = peak_of_its_own(name, quick=options.quick)
    print(table(runs))
    print(f"\nThe losses differ by {furthest(runs):.1e} of themselves at the most.")
    print(f"{steps} steps of {sizes.batch * sizes.tokens} tokens, ", end="")
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads, ", end="")
    print(f"{time.perf_counter() - start:.0f} s in all. Step times are medians of ratios, the first step left out.")
    if options.plot:
        plot(runs, options.plot)


if __name__ == "__main__":
    sys.exit(main())
