"""Rule PB306: tensors that pile up outside of the call."""

from __future__ import annotations

import pytest

from tests.lint.helper import HEAD, expected, findings, found


def forward(
    *lines: str, file: str = "", body: str = "seen = []", bound: str = "staticmethod", first: str = "ctx"
) -> str:
    """A Function with these lines in its forward, in a file with other lines."""
    inside = "\n".join(f"        {line}" for line in lines)
    return (
        f"{HEAD}log = []\n{file}\nclass Kept(Function):\n    {body}\n"
        f"    @{bound}\n    def forward({first}, x: torch.Tensor):\n{inside}\n        return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return 2 * g\n"
    )


@pytest.mark.parametrize(
    "line",
    ["Kept.seen.append(x * 2)", "Kept.seen.append(x)", "Kept.seen.insert(0, x.clone())", "Kept.group.add(x)"],
)
def test_a_list_on_the_class_that_only_grows_is_found(line: str) -> None:
    """Each call leaves a tensor in it."""
    text = forward(f"{line}  # PB306")
    assert found(text) == expected(text)


def test_a_global_list_that_only_grows_is_found() -> None:
    """By its name in the message."""
    text = forward("log.append(x.detach())  # PB306", body="pass")
    assert found(text) == expected(text)
    (finding,) = findings(text)
    assert finding.message == "Each call leaves a tensor in log, and nothing takes it out again."


def test_cls_is_the_class() -> None:
    """In a class method its first parameter stands for it."""
    text = forward("cls.seen.append(x)  # PB306", bound="classmethod", first="cls, ctx")
    assert found(text) == expected(text)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("Kept.seen.append(x.shape)", ""),
        ("Kept.seen.append(float(x.sum()))", ""),
        ("own = []; own.append(x)", ""),
        ("Kept.seen.append(x)", "def clear():\n    Kept.seen.clear()"),
        ("Kept.seen.append(x)", "def last():\n    return Kept.seen.pop()"),
        ("Kept.seen.append(x)", "def reset():\n    Kept.seen = []"),
        ("Kept.seen.append(x)", "def report():\n    use(Kept.seen)"),
        ("unknown.append(x)", ""),
    ],
)
def test_what_is_taken_out_again_is_right(line: str, file: str) -> None:
    """Numbers, a list of its own, a list that something else in the file empties, replaces or hands on."""
    assert [one for one in found(forward(line, file=file)) if "PB306" in one] == []
