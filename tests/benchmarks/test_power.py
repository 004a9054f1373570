"""benchmarks/power.py plants faults, decides which can be noticed, and counts who finds them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import power
from benchmarks.mutation import tables
from benchmarks.mutation.judges import JUDGES, judged
from benchmarks.mutation.kinds import KINDS
from benchmarks.mutation.observe import observe, recorded
from benchmarks.mutation.originals import ROOT, Original, load, originals
from benchmarks.mutation.plant import Mutant, mutants_of, prepared, target_of
from benchmarks.mutation.pool import Results, Task, run

BY_ID = {original.id: original for original in originals()}


def mutant(kind: str, original: str) -> Mutant:
    """One mutant of a kind."""
    return next(mutants_of(BY_ID[original], [KINDS[kind]], None))


def seen(kind: str, original: str, folder: Path) -> tuple[str, str]:
    """What the observer says of it: the verdict, and where."""
    one = mutant(kind, original)
    found = observe(one.write(prepared(folder)), one.original.path, one.original.name)
    return found.verdict, found.where


def test_there_are_enough_kinds_and_mutants() -> None:
    """At least 25 kinds, a fifth of all late, as many as the README says, and mutants from a hundred Functions."""
    late = [kind for kind in KINDS.values() if kind.late]
    assert len(KINDS) - len(late) >= 25
    assert len(late) >= 0.2 * len(KINDS)
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"There are {len(KINDS)} kinds. {len(late)} of them are late" in text
    assert len(BY_ID) > 100
    few = [mutant for name in ("chapter.GeluMLP", "swiglu.SwiGLU") for mutant in mutants_of(BY_ID[name])]
    assert len({mutant.id for mutant in few}) == len(few) > 100


@pytest.mark.parametrize("name", ["chapter.Matmul", "transforms.ScaledWithVmap", "gradients.ClipGradientNorm"])
def test_mutants_are_python_and_differ_in_the_methods_named(name: str) -> None:
    """Each mutant parses, differs from the original, says how, and leaves reference and samples as they are."""
    original = BY_ID[name]
    right = _statements(original.source, original.name)
    for one in mutants_of(original, each=2):
        assert _statements(one.source, original.name) == right, one.id
        assert one.source != original.source
        assert "\n+" in one.diff or "\n-" in one.diff


def _statements(source: str, name: str) -> list[str]:
    cls = next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    kept = ("reference", "surrogate", "expected_backward", "samples")
    return [ast.dump(node) for node in getattr(cls, "body", []) if getattr(node, "name", "") in kept]


def test_forward_is_a_formula_only_where_a_reference_owns_it() -> None:
    """A helper that forward calls may be rewritten where there is a reference, and else not."""
    owned = {place.function.name for place in target_of(BY_ID["rms_norm.RMSNorm"]).places}
    assert {"gradients", "normalised"} <= owned
    assert not list(target_of(BY_ID["chapter.Matmul"]).having(["formula"]))


def test_late_kinds_plant_enough() -> None:
    """Each has at least four mutants, and each of them is Python."""
    late = [kind for kind in KINDS.values() if kind.late]
    count = dict.fromkeys((kind.name for kind in late), 0)
    for original in BY_ID.values():
        for one in mutants_of(original, [kind for kind in late if count[kind.name] < 4]):
            ast.parse(one.source)
            count[one.kind] += 1
    assert min(count.values()) >= 4, count


def test_each_kind_plants_something() -> None:
    """No kind is an empty name."""
    left = dict(KINDS)
    for name in ("plain.ComplexProduct", "transforms.ScaledWithVmap", "transforms.ProductWithJvp", "rms_norm.RMSNorm"):
        for kind in list(left.values()):
            if next(mutants_of(BY_ID[name], [kind], None), None):
                del left[kind.name]
    for original in BY_ID.values():
        for kind in list(left.values()):
            if next(mutants_of(original, [kind], None), None):
                del left[kind.name]
    assert not left


@pytest.mark.parametrize("name", ["chapter.Square", "memory.Dropout", "declared.DoubledInPlace", "declared.Quantised"])
def test_an_original_is_equivalent_to_itself(name: str) -> None:
    """Nothing differs between two copies, with random numbers, and arguments that are written to."""
    original = BY_ID[name]
    assert len(list(recorded(original.path, original.name))) > 30  # they were compared on something
    assert observe(ROOT / original.path, original.path, original.name).verdict == "equivalent"


@pytest.mark.parametrize(
    ("kind", "original", "where"),
    [
        ("factor", "plain.MatchesOnlyItself", "first order: gradient 0 is off by"),
        ("strides ignored", "calls.WithSetupContext", "sliced, first order: gradient"),
        ("written gradient", "calls.WithSetupContext", "cotangent after backward 0 is off by"),
        ("detached saved tensor", "calls.WithSetupContext", "second order: second gradient"),
        ("wrong jvp", "transforms.ProductWithJvp", "forward mode: tangent"),
        ("result kept on ctx", "plain.TimesThree", "freed: freed is"),
        ("kept for ever", "plain.TimesThree", "freed: freed is"),
        ("offset ignored", "chapter.Square", "offset, first order: gradient 0 is off by"),
        ("values looked at", "chapter.Square", "batched cotangents: batched gradient 0 raises"),
        ("rows taken for packed", "chapter.Square", "rows apart"),
        ("answer kept", "plain.TimesThree", "one graph: gradient along another 0 is off by"),
        ("shared buffer", "plain.TimesThree", "one graph: gradient held 0 is off by"),
        ("handle of a thread", "plain.TimesThree", "another thread: gradient 0 raises"),
        ("precision once lowered", "plain.TimesThree", "after half precision: gradient 0, afterwards is off by"),
        ("gradient left on a parameter", "chapter.Square", "parameters: gradient 0 is off by"),
        ("settings changed", "plain.TimesThree", "settings: settings is"),
        ("result in a shared buffer", "chapter.Square", "three calls: value held of 0"),
        ("two slots in turn", "chapter.Square", "three calls: gradient of 0"),
        ("added to what lies there", "chapter.Square", "three calls: piled up of 0"),
        ("nothing comes in", "plain.TimesThree", "graph of nothing: second gradient 0 is missing"),
        ("insists on contiguous", "plain.TimesThree", "cotangents: gradient 0, expanded cotangent raises"),
    ],
)
def test_a_fault_is_noticed_where_it_shows(kind: str, original: str, where: str, tmp_path: Path) -> None:
    """Layouts, writes, second order, tangents, cycles, sequels and settings are looked at, not only first gradients."""
    verdict, place = seen(kind, original, tmp_path)
    assert verdict == "observable"
    assert where in place


def test_a_fault_that_is_made_good_is_equivalent(tmp_path: Path) -> None:
    """Without a graph of its own, backward's derivative comes from forward's replay: nobody sees a difference."""
    assert seen("gradients switched off", "chapter.Square", tmp_path)[0] == "equivalent"


@pytest.mark.parametrize(
    ("kind", "original", "verdict"),
    [
        ("declared once differentiable", "transforms.ProductWithJvp", "declines"),
        ("declared once differentiable", "declared.FrozenBase", "declines"),
        ("fills a buffer", "declared.Reversed", "declines"),
        ("fills a buffer", "chapter.Square", "observable"),
        ("detached saved tensor", "calls.WithSetupContext", "observable"),
    ],
)
def test_what_a_right_function_may_decline_is_told_apart(
    kind: str, original: str, verdict: str, tmp_path: Path
) -> None:
    """A declared loss of the second order, an error for batched cotangents where no batching was promised (F12)."""
    assert seen(kind, original, tmp_path)[0] == verdict


def test_a_mutant_that_raises_at_once_is_told_apart(tmp_path: Path) -> None:
    """A missing None raises on the first sample."""
    assert seen("forgotten None", "chapter.ClippedReLU", tmp_path)[0] == "broken at once"


def test_the_judges_find_what_they_can(tmp_path: Path) -> None:
    """All find a sign; gradcheck alone doesn't see a lost second derivative; none scolds the original."""
    sign, lost = mutant("sign", "calls.WithSetupContext"), mutant("detached saved tensor", "calls.WithSetupContext")
    folder = prepared(tmp_path)
    for judge in JUDGES:
        assert judged(judge, load(sign.write(folder), "WithSetupContext"), 0)["found"], judge
        right = judged(judge, load(ROOT / sign.original.path, "WithSetupContext"), 0)
        assert right["found"] == "", judge
    cls = load(lost.write(folder), "WithSetupContext")
    assert judged("gradcheck", cls, 0)["found"] == ""
    assert judged("gradgradcheck", cls, 0)["found"]


HANGS = """
import torch
class Hangs(torch.autograd.Function):
    @staticmethod
    def samples():
        while True:
            pass
class Crashes(torch.autograd.Function):
    @staticmethod
    def samples():
        import os
        os._exit(3)
"""


def test_a_hang_and_a_crash_are_results_and_are_kept(tmp_path: Path) -> None:
    """The worker is replaced, the next task runs, and a second run does nothing again; half a line is dropped."""
    path = tmp_path / "hangs.py"
    path.write_text(HANGS, encoding="utf-8")

    def task(name: str) -> Task:
        message = {"stage": "gradcheck", "file": str(path), "class": name, "original": str(path), "seed": 0}
        return Task(name, message)

    file = tmp_path / "results.jsonl"
    file.write_text('{"key": "Missing", "found": "", "seconds": 0.0}\n{"key": "half', encoding="utf-8")
    asked: list[tuple[int, int]] = []
    crash = [task("Crashes"), task("Missing")]
    run(crash, Results(file), jobs=1, limit=100, progress=lambda *at: asked.append(at))
    run([task("Hangs")], Results(file), jobs=1, limit=2, progress=lambda *at: asked.append(at))
    assert asked == [(1, 1), (1, 1)]
    again = Results(file)
    assert again.found["Crashes"] == {"ended": "crashed"}
    assert again.found["Hangs"] == {"ended": "timed out"}
    run([*crash, task("Hangs")], again, jobs=1, limit=2, progress=lambda *at: asked.append(at))
    assert len(asked) == 2


def test_a_fault_of_the_observer_is_no_result(tmp_path: Path) -> None:
    """A task that this package can't do stops the run, and isn't counted as a crash of the mutant."""
    path = ROOT / BY_ID["chapter.Square"].path
    message = {"stage": "observe", "file": str(path), "class": "Square", "original": "nowhere.py", "seed": 0}
    results = Results(tmp_path / "results.jsonl")
    with pytest.raises(RuntimeError, match=r"Square#observe can't be done:"):
        run([Task("Square#observe", message)], results, jobs=1, limit=100, progress=lambda *at: None)
    assert results.found == {}


def _result(
    kind: str, observed: str, found: dict[str, str], scolded: dict[str, set[str]], hints: tuple[str, str] = ("", "")
) -> tables.Result:
    """A result; `hints` are the battery's on the mutant and on its original."""
    one = Mutant(f"{kind}/f.F/0", kind, Original("f.py", "F"), "", "backward:\n-a\n+b")
    records: dict[str, dict[str, Any]] = {f"{one.id}#observe": {"verdict": observed, "where": "sample 0"}}
    records |= {f"{one.id}#{judge}": {"found": found.get(judge, ""), "seconds": 1.0} for judge in JUDGES}
    records[f"{one.id}#battery"]["hints"] = hints[0]
    made = tables.result_of(one, records, scolded, {"f.F": {hints[1]}})
    assert made is not None
    return made


def test_counting() -> None:
    """Equivalent ones don't count; a scolded original takes the find back; a survivor is listed with its diff."""
    nobody: dict[str, set[str]] = {judge: set() for judge in JUDGES}
    found = _result("sign", "observable", {"battery": "PB203", "gradcheck": "GradcheckError"}, nobody)
    survived = _result("sign", "observable", {}, nobody)
    equivalent = _result("sign", "equivalent", {"battery": "PB203"}, nobody)
    both = _result("sign", "observable", {"battery": "PB203"}, {**nobody, "battery": {"f.F"}})
    results = [found, survived, equivalent, both]
    assert tables.share(results, "battery") == (1, 3)
    assert tables.share(results, "gradcheck") == (1, 3)
    assert tables.survivors(results) == [survived, both]
    assert tables.doubtful(results) == [equivalent]
    assert "-a\n  +b" in tables.survivor_text(survived)
    (row,) = tables.by_kind(results, late=False)
    assert (row["mutants"], row["observable"], row["battery"]) == (4, 3, 1)
    assert tables.by_kind(results, late=True) == []


def test_a_hint_counts_for_what_is_declined_alone() -> None:
    """It must be the mutant's own, and the mutant mustn't be wrong in anything else; the table says how many."""
    nobody: dict[str, set[str]] = {judge: set() for judge in JUDGES}
    told = _result("sign", "declines", {}, nobody, ("PB509", ""))
    old = _result("sign", "declines", {}, nobody, ("PB509", "PB509"))
    wrong = _result("sign", "observable", {}, nobody, ("PB509", ""))
    silent = _result("sign", "declines", {}, nobody)
    found = _result("sign", "declines", {"battery": "PB205"}, nobody, ("PB509", ""))
    results = [told, old, wrong, silent, found]
    assert tables.survivors(results) == [old, wrong, silent]
    (row,) = tables.by_kind(results, late=False)
    assert (row["observable"], row["battery"], row["of the battery's by a hint"]) == (5, 2, 1)


def test_a_mutant_half_done_is_not_counted() -> None:
    """While a judge's answer is due there is no result."""
    one = Mutant("sign/f.F/0", "sign", Original("f.py", "F"), "", "")
    records = {"sign/f.F/0#observe": {"verdict": "observable"}}
    assert tables.result_of(one, records, {judge: set() for judge in JUDGES}, {}) is None


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two kinds on one Function: tables, targets and provenance; --report counts the same without running."""
    path = tmp_path / "power.json"
    options = ["--kind", "sign", "--kind", "drifts", "--original", "memory.SavesItsOutput", "--seeds", "1"]
    options += ["--jobs", "1", "--folder", str(tmp_path), "--json", str(path)]
    assert power.main(options) == 0
    printed = capsys.readouterr().out
    assert "| sign | one gradient has the other sign | 1 | 1 | 0 | 1 | 1 | 1 | 0 |" in printed
    assert "* findings on originals: 0, none allowed: met" in printed
    assert "command python benchmarks/power.py --kind sign" in printed
    (sign, drifts) = json.loads(path.read_text(encoding="utf-8"))["mutants"]
    assert sign["verdicts"]["gradcheck"]["found"] == "GradcheckError"
    assert drifts["observed"] == "observable"
    assert power.drawn(power.parser().parse_args(options))[1][0].kind in ("sign", "drifts")
    before = (tmp_path / "results.jsonl").read_text(encoding="utf-8")
    assert power.main([*options, "--report"]) == 0
    assert (tmp_path / "results.jsonl").read_text(encoding="utf-8") == before


def test_an_unknown_original_is_named() -> None:
    """The error says which one there isn't."""
    with pytest.raises(SystemExit, match=r"no right Function is called swish\.Swish"):
        power.drawn(power.parser().parse_args(["--original", "swish.Swish"]))
