"""A process that does one thing at a time with one mutant, and may hang or crash: `pool` stands over it.

It reads a task from each line of standard input and writes a result to standard output, both as JSON. A task names a
stage (``observe``, or a judge), the file, the class, the original's file and a seed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

OBSERVE = "observe"
"""The stage that decides whether a mutant is observable; the other stages are judges."""


def done(task: dict[str, Any]) -> dict[str, Any]:
    """Do one task."""
    from benchmarks.mutation.judges import judged
    from benchmarks.mutation.observe import observe
    from benchmarks.mutation.originals import load

    path = Path(task["file"])
    if task["stage"] == OBSERVE:
        start = time.process_time()
        seen = observe(path, task["original"], task["class"])
        return {"verdict": seen.verdict, "where": seen.where, "seconds": round(time.process_time() - start, 4)}
    try:
        cls = load(path, task["class"])
    except Exception as error:
        return {"found": f"importing it raises {type(error).__name__}", "seconds": 0.0}
    return judged(task["stage"], cls, task["seed"])


def main() -> None:
    """Answer each line until there is none."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a mutant prints is no answer
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            answer = done(json.loads(line))
        except Exception:  # a fault of this package: never to be taken for one of the mutant's
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
