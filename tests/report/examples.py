"""Reports that show everything a writer has to write."""

from __future__ import annotations

import math
from dataclasses import replace

from pullback.finding import ErrorMap, Finding, Outcome, Report, Status
from pullback.report.remarks import Remarks

ERRORS = ErrorMap(shape=(2, 2), block=(1, 1, 1), values=((0.0, 0.0), (1.5, None)))
WRONG = Finding(
    rule="PB203",
    function="Scale",
    where="argument x, sample 0",
    message="backward's gradient for x differs from forward's derivative by up to 0.5 at index (1, 0), "
    "which is half of what is due there",
    expected="[[1.0, 2.0],\n [3.0, 4.0]]",
    got="[[1.0, 2.0],\n [1.5, 4.0]]",
    repro="import torch\nfrom ops import Scale\n\nx = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)\n"
    "Scale.apply(x).sum().backward()",
    probe="first_order",
    evidence={
        "max_error": 1.5,
        "index": [1, 0],
        "worst": math.inf,
        "ratio": -math.inf,
        "noise": math.nan,
        "error_map": ERRORS.evidence,
    },
    location="ops.py:12",
)
HINT = Finding(
    rule="PB601",
    function="Scale",
    where="argument factor",
    message="backward ran 3 operators for it",
    remedy="Guard it with ctx.needs_input_grad[1].",
    probe="subsets",
    location="ops.py:12",
)
FAULTY = Report(
    function="Scale",
    findings=(WRONG, HINT),
    outcomes={
        "values": Outcome(status=Status.SKIPPED, reason="no reference"),
        "first_order": Outcome(status=Status.FAILED, seconds=0.25),
        "outputs": Outcome(status=Status.SKIPPED, reason="there is only one output"),
        "precision": Outcome(status=Status.SKIPPED, reason="no reference"),
        "layouts": Outcome(status=Status.PASSED, seconds=0.5, notes=("refused: expanded x (RuntimeError)",)),
        "subsets": Outcome(status=Status.FAILED, seconds=0.25),
    },
    samples="2 declared by samples()",
    untested=("CUDA tensors: the samples are on the CPU", "third order"),
    seed=7,
    location="ops.py:12",
)
CLEAN = Report(
    function="Square",
    outcomes={
        "values": Outcome(status=Status.SKIPPED, reason="no reference is known"),
        "first_order": Outcome(status=Status.PASSED, seconds=0.125),
        "outputs": Outcome(status=Status.SKIPPED, reason="there is only one output"),
        "shapes": Outcome(status=Status.PASSED, notes=("refused: an empty x (ValueError)",)),
    },
    samples="1 inferred from the signature",
    untested=("values: no reference is known", "third order"),
    seed=7,
    location="ops.py:40",
)
UNLOADABLE = Report(
    function="broken.py",
    findings=(
        Finding(
            rule="PB120",
            function="broken.py",
            where="broken.py:1: import nowhere",
            message="importing broken.py raised ModuleNotFoundError: No module named 'nowhere'",
            location="broken.py:1",
        ),
    ),
    location="broken.py:1",
)
KNOWN = Report(
    function="Cube",
    outcomes={"second_order": Outcome(status=Status.FAILED, seconds=0.5)},
    samples="1 given",
    untested=("third order",),
    seed=7,
    location="ops.py:60",
)
REPORTS = (FAULTY, CLEAN, KNOWN, UNLOADABLE)
REMARKS = Remarks(
    skipped=("Base (ops.py:3) has no forward: it is abstract, and was not checked",),
    known=((Finding(rule="PB205", function="Cube", where="x", message="wrong"), "waits for the second kernel"),),
    unexpected=("Cube PB304 was not found (kept for a later release)",),
    left_out=2,
    set_aside=1,
)

NASTY = "<script>alert('a')</script>]]>\x00\x1b[31m\r\n::error::%25,\ud800\u202e&\"--><!-- ##[error]"
"""What no name should hold, and may."""

HOSTILE = Report(
    function=NASTY,
    findings=(
        Finding(
            rule="PB203",
            function=NASTY,
            where=NASTY,
            message=NASTY,
            expected=NASTY,
            got=NASTY,
            remedy=NASTY,
            repro=NASTY,
            probe=NASTY,
            evidence={NASTY: [NASTY], "argument": NASTY},
            location=f"ops/{NASTY}.py:12",
        ),
    ),
    outcomes={
        NASTY: Outcome(status=Status.FAILED, notes=(NASTY,)),
        f"{NASTY} again": Outcome(status=Status.SKIPPED, reason=NASTY),
    },
    samples=NASTY,
    untested=(NASTY,),
    location=f"ops/{NASTY}.py:12",
)
HOSTILE_REMARKS = Remarks(
    skipped=(NASTY,), known=((replace(HOSTILE.findings[0], rule="PB205"), NASTY),), unexpected=(NASTY,)
)
