"""One cause gives one finding."""

from dataclasses import replace

from pullback.battery.causes import TABLE, merge
from pullback.finding import Finding
from pullback.rules import RULES, Severity


def finding(rule: str, *, severity: Severity | None = None, **evidence: object) -> Finding:
    """A finding with nothing but what merging looks at."""
    return Finding(rule=rule, function="f", where="", message="", severity=severity, evidence=evidence)


def rules(*findings: Finding) -> list[str]:
    """The codes that are left."""
    return [one.rule for one in merge(findings)]


def test_the_table_names_known_rules_and_nothing_explains_itself() -> None:
    """Each row's codes are in the rulebook."""
    for row in TABLE:
        assert {row.cause, *row.consequences} <= set(RULES)
        assert row.cause not in row.consequences


def test_no_rules_explain_each_other_in_a_circle() -> None:
    """Else all of them would vanish, and a fault with them."""
    explained = {row.cause: set[str]() for row in TABLE}
    for row in TABLE:
        explained[row.cause] |= set(row.consequences)
    while explained:
        last = {cause for cause, codes in explained.items() if not codes & set(explained)}
        assert last, f"a circle among {sorted(explained)}"
        explained = {cause: codes for cause, codes in explained.items() if cause not in last}


def test_a_wrong_first_derivative_explains_the_second() -> None:
    """For the same argument only."""
    assert rules(finding("PB203", argument="x"), finding("PB205", argument="x")) == ["PB203"]
    assert rules(finding("PB203", argument="x"), finding("PB205", argument="w")) == ["PB203", "PB205"]


def test_invisible_tensors_explain_every_gradient() -> None:
    """A list that autograd can't see leaves every gradient None."""
    assert rules(finding("PB204", argument="xs[0]"), finding("PB501"), finding("PB203", argument="y")) == ["PB501"]


def test_what_is_not_linear_explains_the_difference_from_the_derivative() -> None:
    """A clipped gradient is no vector-Jacobian product, and says so by its own code."""
    assert rules(finding("PB203", argument="x"), finding("PB211", argument="x")) == ["PB211"]


def test_the_milder_explains_nothing_that_is_worse() -> None:
    """An opinion must not hide an error, nor a warning one."""
    for severity in (Severity.HINT, Severity.WARNING):
        mild = finding("PB203", severity=severity, argument="x")
        assert rules(mild, finding("PB205", argument="x")) == ["PB205", "PB203"]


def test_a_lower_dtype_explains_its_own_rounding() -> None:
    """The exception: PB215 is a warning, and says why PB214 is seen."""
    assert rules(finding("PB214", argument="x"), finding("PB215", argument="x")) == ["PB215"]


def test_the_same_fault_in_several_samples_is_one_finding() -> None:
    """The samples are listed."""
    (merged,) = merge([finding("PB203", argument="x", sample=0), finding("PB203", argument="x", sample=2)])
    assert merged.evidence["samples"] == [0, 2]


def test_faults_of_two_kinds_stay_two() -> None:
    """A lost sign here and a factor there are two slips; so are a wrong number and one with a pattern."""
    sign = finding("PB203", argument="x", diagnosis="its sign is wrong everywhere, and nothing else")
    twice = finding("PB203", argument="w", diagnosis="it is 2 times the right one everywhere")
    assert rules(sign, twice) == ["PB203"] * 2
    assert rules(sign, finding("PB203", argument="w")) == ["PB203"] * 2
    assert rules(finding("PB208", argument="x"), finding("PB208", argument="w")) == ["PB208"] * 2


def test_wrong_numbers_without_a_pattern_are_one_finding_with_the_worst() -> None:
    """A slope that three gradients share is one slip: all arguments are named, and the numbers are the largest."""
    errors = {"x": 0.1, "weight": 0.5, "bias": 0.2}
    found = [
        replace(
            finding("PB203", argument=name, max_error=error, sample=sample),
            where=f"argument {name}, sample {sample}", expected=name,
        )
        for sample, (name, error) in enumerate(errors.items())
    ]  # fmt: skip
    (one,) = merge(found)
    assert one.where == "arguments weight, x and bias, sample 1"
    assert one.message == "; the same holds for x and bias"
    assert one.expected == "weight"
    assert one.evidence["arguments"] == ["weight", "x", "bias"]
    assert one.evidence["samples"] == [0, 1, 2]


def test_what_two_probes_find_of_two_arguments_stays_two() -> None:
    """Nothing says that it is the same."""
    found = [replace(finding("PB203", argument=name), probe=probe) for name, probe in (("x", "ties"), ("w", "shapes"))]
    assert rules(*found) == ["PB203", "PB203"]


def test_one_saved_tensor_is_one_finding() -> None:
    """It is cut off for whatever depends on it: the weight in one sample, x in another."""
    same = [finding("PB206", argument=name, tensor="saved tensor 2", sample=i) for i, name in enumerate("wx")]
    assert rules(*same) == ["PB206"]
    assert rules(*same, finding("PB206", argument="x", tensor="saved tensor 1")) == ["PB206", "PB206"]


def test_a_memory_of_earlier_calls_explains_a_backward_that_raises() -> None:
    """What was remembered has another dtype, say."""
    assert rules(finding("PB504"), finding("PB125", sample=0), finding("PB517")) == ["PB504"]


def test_the_worst_come_first() -> None:
    """Errors, then warnings, then hints."""
    assert rules(finding("PB601", argument="x"), finding("PB303"), finding("PB203", argument="x")) == [
        "PB203",
        "PB303",
        "PB601",
    ]


def test_wasted_work_for_several_arguments_is_one_finding_that_names_them() -> None:
    """The remedy is one habit, needs_input_grad, so a block for each argument would say nothing new."""
    (one,) = merge(finding("PB601", argument=name, sample=0) for name in ("y", "z", "x", "y"))
    assert one.message.endswith("; the gradients of z and x, too, are computed where not asked for")
    (two,) = merge(finding("PB601", argument=name) for name in ("y", "x"))
    assert two.message.endswith("; the gradient of x, too, is computed where not asked for")
    assert one.evidence["arguments"] == ["y", "z", "x"]
    (alone,) = merge([finding("PB601", argument="y")])
    assert alone.message == ""
    assert "arguments" not in alone.evidence


def test_errors_that_say_another_thing_stay_apart() -> None:
    """The text of pullback's own error tells two places with one code apart."""
    assert rules(finding("PB503", said="uses w"), finding("PB503", said="uses v")) == ["PB503", "PB503"]
    assert rules(finding("PB503", said="uses w"), finding("PB503", said="uses w", sample=1)) == ["PB503"]


def test_one_declaration_is_one_finding() -> None:
    """A straight-through gradient or a clip of two arguments is declared once, so it is found once, and names both."""
    for rule in ("PB211", "PB216", "PB214", "PB215"):
        (one,) = merge(finding(rule, argument=name, sample=0) for name in ("x", "w"))
        assert one.message == "; the same holds for w"
        assert one.evidence["arguments"] == ["x", "w"]


def test_two_dtypes_are_both_named() -> None:
    """One argument in float32 and another in float16."""
    both = [finding("PB214", argument="x", dtype="float32"), finding("PB214", argument="w", dtype="float16")]
    (one,) = merge(both)
    assert one.message == "; the same holds for w (float16)"


def test_a_warning_and_an_error_of_one_rule_stay_two() -> None:
    """The milder must not stand for the worse."""
    assert rules(finding("PB211", argument="x"), finding("PB211", severity=Severity.WARNING, argument="w")) == [
        "PB211",
        "PB211",
    ]


def test_rounding_explains_what_names_no_argument() -> None:
    """pullback's own word that a gradient isn't the reference's; a named argument has a fault of its own."""
    assert rules(finding("PB214", argument="x"), finding("PB203")) == ["PB214"]
    assert rules(finding("PB214", argument="x"), finding("PB203", argument="x")) == ["PB214", "PB203"]
