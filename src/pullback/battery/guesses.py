"""What a signature might take: the sets of arguments to try, from tensors all alike to numbers and integer targets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pullback.battery.leaves import replace as replace_tensors

Shape = tuple[int, ...]

_VARIADIC_COUNT = 2
_NUMBERS = (0.6, 0.9, 1.3)
"""Numbers in rising order, since a lower bound comes before an upper one in every signature that has both; none is what
a formula makes of the sizes that are guessed, as 0.5 is of a scale."""
_COUNT = 3
"""How many classes, rows or segments there are where a number says so: more than the largest index that is guessed."""

TARGETS = frozenset("target targets label labels index indices idx ids mask lengths segments".split())
_BY_NAME: dict[str, object] = {
    "dim": 1, "axis": 1, "eps": 1e-5, "p": 0.5, "training": False, "inplace": False, "keepdim": False,
    "reduction": "mean", "ignore_index": -100, "num_groups": 1, "groups": 1, "stride": 1, "padding": 0, "dilation": 1,
}  # fmt: skip
"""What PyTorch's own functions call the parameters that are no tensors, and a value that suits most shapes. Elsewhere
the same names may stand for tensors, so they are tried so first, and not only so."""


@dataclass(frozen=True)
class Made:
    """A tensor to make.

    Attributes:
        shape: Its shape.
        kind: ``float``, ``int`` (zeros and ones: they fit as classes and as indices) or ``bool``.
        grad: Whether it requires grad.
    """

    shape: Shape
    kind: str = "float"
    grad: bool = True

    def __str__(self) -> str:
        kind = "" if self.kind == "float" else f"{self.kind} "
        return f"{kind}{self.shape}" + (" without grad" if self.kind == "float" and not self.grad else "")


@dataclass(frozen=True)
class LastSize:
    """The size of the first tensor's last dimension, as a shape: what a normalisation is told."""


@dataclass(frozen=True)
class Slot:
    """One argument to fill.

    Attributes:
        name: The parameter's name, ``xs[0]`` for variadic ones.
        kind: ``tensor`` (annotated as one), ``tensors`` (a list of them), ``value`` (known), ``any`` (nothing says what
            it is), or ``odd`` (the annotation says something else).
        value: The value, where it is known.
        keyword: Whether it can be passed by its name alone.
    """

    name: str
    kind: str
    value: object = None
    keyword: bool = False

    @property
    def open(self) -> bool:
        """Whether a tensor may go here."""
        return self.kind != "value"


@dataclass(frozen=True)
class Guess:
    """One set of arguments to try: a `Made`, a list of them, or a plain value for each slot."""

    slots: tuple[Slot, ...]
    entries: tuple[object, ...]

    def __str__(self) -> str:
        return ", ".join(f"{slot.name} {_text(entry)}" for slot, entry in zip(self.slots, self.entries, strict=True))

    @property
    def first(self) -> Shape:
        """The shape of the first tensor."""
        return next((entry.shape for entry in self.entries if isinstance(entry, Made)), ())

    def make(
        self,
        generator: torch.Generator,
        dtype: torch.dtype,
        low: float,
        width: float,
        signed: frozenset[int] = frozenset(),
    ) -> tuple[object, ...]:
        """The arguments, with random values from `low` on; in the places `signed` half of them are negative."""

        def value(entry: object, *, both: bool) -> object:
            if isinstance(entry, Made):
                return _tensor(entry, generator, dtype, low, width, both=both)
            if isinstance(entry, list):
                return [value(item, both=both) for item in entry]
            return self.first[-1:] if isinstance(entry, LastSize) else entry

        return tuple(value(entry, both=place in signed) for place, entry in enumerate(self.entries))

    def split(self, values: Sequence[object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The values, one for each slot, as positional arguments and as those that go by keyword alone."""
        pairs = [*zip(self.slots, values, strict=True)]
        positional = tuple(value for slot, value in pairs if not slot.keyword)
        return positional, {slot.name: value for slot, value in pairs if slot.keyword}

    def numeric(self) -> tuple[int, ...]:
        """The places of floating tensors, and of lists of them."""

        def is_numeric(entry: object) -> bool:
            if isinstance(entry, list):
                return any(map(is_numeric, entry))
            return isinstance(entry, Made) and entry.kind == "float"

        return tuple(place for place, entry in enumerate(self.entries) if is_numeric(entry))

    def followed_by(self, slots: Sequence[Slot]) -> Guess:
        """The guess with the values of further slots behind it."""
        return Guess((*self.slots, *slots), (*self.entries, *(slot.value for slot in slots)))

    def with_tensor(self, slot: Slot, entry: Made) -> Guess:
        """The guess with a tensor for the slot of that name, which was a value."""
        slots = tuple(slot if other.name == slot.name else other for other in self.slots)
        names = [other.name for other in slots]
        entries = tuple(entry if name == slot.name else old for name, old in zip(names, self.entries, strict=True))
        return Guess(slots, entries)

    def with_value(self, name: str, value: object) -> Guess:
        """The guess with another value in the slot of that name."""
        pairs = [(slot, entry) for slot, entry in zip(self.slots, self.entries, strict=True)]
        slots = tuple(replace(slot, value=value) if slot.name == name else slot for slot, _ in pairs)
        return Guess(slots, tuple(value if slot.name == name else entry for slot, entry in pairs))

    def with_nothing(self, names: frozenset[str]) -> Guess:
        """The guess with None in the slots of these names."""
        slots = tuple(replace(slot, kind="value", value=None) if slot.name in names else slot for slot in self.slots)
        entries = zip(self.slots, self.entries, strict=True)
        return Guess(slots, tuple(None if slot.name in names else entry for slot, entry in entries))

    def without_grad(self, names: frozenset[str], *, numbers: bool) -> Guess:
        """The guess with numbers (where no annotation asks for a tensor), or tensors without grad, for some slots."""
        entries, count = list(self.entries), 0
        for place, slot in enumerate(self.slots):
            entry = entries[place]
            if slot.name not in names or not isinstance(entry, Made):
                continue
            if numbers and slot.kind != "tensor" and slot.name not in TARGETS:
                entries[place] = _number(count)
                count += 1
            else:
                entries[place] = replace(entry, grad=False)
        return replace(self, entries=tuple(entries))


def slots_of(parameters: Sequence[inspect.Parameter], *, by_name: bool) -> tuple[Slot, ...]:
    """What has to be filled: parameters without a default, two for variadic ones.

    Args:
        parameters: Those of the signature.
        by_name: Whether a name may tell that a parameter is no tensor, where no annotation tells more.
    """
    slots: list[Slot] = []
    numbers = 0
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            slots += [Slot(f"{parameter.name}[{place}]", "tensor") for place in range(_VARIADIC_COUNT)]
        elif parameter.default is inspect.Parameter.empty:
            slot = slot_of(parameter, numbers, by_name=by_name and bool(slots))
            numbers += isinstance(slot.value, float)
            slots.append(slot)
    return tuple(slots)


def families(slots: tuple[Slot, ...]) -> Iterator[list[Guess]]:
    """The guesses in order of preference; those of one family are the same idea in two or three sizes."""
    count = sum(slot.open for slot in slots)
    for shapes in _TENSORS if count > 1 else _SINGLE:
        family = [_with_shapes(slots, shapes(count, size)) for size in (0, 1)]
        yield family
    for number in (_number, lambda place: 1):
        for kept in range(count - 1, 0, -1):
            yield [_with_numbers(slots, shape, kept, number) for shape in ((2, 3), (3, 4))]
        if number is _number:
            yield from _with_targets(slots, count)
            yield from _with_targets_and_counts(slots, count)


def pointlike(slots: tuple[Slot, ...]) -> Guess:
    """Tensors without dimensions: they fit nearly everywhere, and prove little."""
    return _with_shapes(slots, [()] * sum(slot.open for slot in slots))


def slot_of(parameter: inspect.Parameter, numbers: int, *, by_name: bool) -> Slot:
    """What a parameter takes, by its annotation, or else by its name where that may tell."""
    slot = _slot_of(parameter, numbers, by_name=by_name)
    return replace(slot, keyword=True) if parameter.kind is inspect.Parameter.KEYWORD_ONLY else slot


def _slot_of(parameter: inspect.Parameter, numbers: int, *, by_name: bool) -> Slot:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = str(annotation) if set("[|") & set(str(annotation)) else str(text)
    words = set(re.findall(r"\w+", text)) if annotation is not inspect.Parameter.empty else set()
    name = parameter.name
    if words & {"dict", "Dict", "Mapping", "Callable"}:
        return Slot(name, "odd")
    if "Tensor" in words:
        return Slot(name, "tensors" if words & {"list", "List", "Sequence", "Iterable"} else "tensor")
    if words & {"tuple", "Tuple", "list", "List", "Size", "Sequence"} and "int" in words:
        return Slot(name, "value", LastSize())
    for kind, value in (("float", _number(numbers)), ("int", 1), ("bool", False)):
        if kind in words:
            return Slot(name, "value", _BY_NAME.get(name, value))
    if by_name and name == "normalized_shape":
        return Slot(name, "value", LastSize())
    if by_name and name in _BY_NAME:
        return Slot(name, "value", _BY_NAME[name])
    return Slot(name, "odd" if words - {"Any", "object"} else "any")


def _number(place: int) -> float:
    return _NUMBERS[place] if place < len(_NUMBERS) else _NUMBERS[-1] + place


# -- tensors ----------------------------------------------------------------------------------------------------------


def _alike(*sizes: Shape) -> Callable[[int, int], list[Shape]]:
    return lambda count, size: [sizes[size]] * count


def _first_and_rest(first: tuple[Shape, Shape], *rest: tuple[Shape, Shape]) -> Callable[[int, int], list[Shape]]:
    """The first tensor's shape, then those of the others; the last one serves for all that are left."""

    def shapes(count: int, size: int) -> list[Shape]:
        listed = [pair[size] for pair in (first, *rest)]
        return (listed + [listed[-1]] * count)[:count]

    return shapes


def _last_apart(count: int, size: int) -> list[Shape]:
    shape = ((2, 3), (3, 4))[size]
    return [shape] * (count - 1) + [shape[1:]]


# No last dimension is so small that normalising along it leaves nothing, and none at all is 1, which broadcasts.
_ROWS: tuple[Shape, ...] = ((4, 3), (2, 4))
_SINGLE = (_alike((2, 3), (3, 4)), _alike((3,), (4,)), _alike((2, 2, 3, 3), (3, 2, 3, 4)), _alike((2, 2, 3), (3, 2, 4)))
_TENSORS = (
    _alike((2, 3), (3, 4)),
    _first_and_rest(((2, 3), (3, 4)), ((4, 3), (2, 4)), ((4,), (2,))),  # x @ w.t() + b
    _first_and_rest(((2, 3), (3, 4)), ((3, 4), (4, 2)), ((4,), (2,))),  # x @ w + b
    _first_and_rest(((2, 3), (3, 4)), ((3,), (4,))),  # a vector for each row
    _last_apart,
    _alike((3, 3), (4, 4)),
    _alike((3,), (4,)),
    _alike((2, 2, 3), (3, 2, 4)),
    _alike((2, 2, 3, 3), (3, 2, 3, 4)),
    _first_and_rest(((2, 2, 5, 5), (3, 3, 4, 4)), ((3, 2, 3, 3), (2, 3, 2, 2)), ((3,), (2,))),  # a 2-D convolution
    _first_and_rest(((2, 2, 5), (3, 3, 4)), ((3, 2, 3), (2, 3, 2)), ((3,), (2,))),  # a 1-D one
)


def _with_shapes(slots: tuple[Slot, ...], shapes: list[Shape]) -> Guess:
    given = iter(shapes)
    return Guess(slots, tuple(_open(slot, next(given)) if slot.open else slot.value for slot in slots))


def _open(slot: Slot, shape: Shape) -> object:
    return [Made(shape)] * _VARIADIC_COUNT if slot.kind == "tensors" else Made(shape)


# -- numbers and targets ----------------------------------------------------------------------------------------------


def _with_numbers(slots: tuple[Slot, ...], shape: Shape, kept: int, number: Callable[[int], object]) -> Guess:
    """Tensors of one shape for the first `kept` open slots, and for those annotated so; numbers for the others."""
    entries: list[object] = []
    seen = count = 0
    for slot in slots:
        if not slot.open:
            entries.append(slot.value)
            continue
        seen += 1
        if seen <= kept or slot.kind in ("tensor", "tensors"):
            entries.append(_open(slot, shape))
        else:
            entries.append(number(count))
            count += 1
    return Guess(slots, tuple(entries))


def _with_targets(slots: tuple[Slot, ...], count: int) -> Iterator[list[Guess]]:
    """Integers or bools where a name asks for them, else in the last place: one a row, one an element, a mask."""
    if count < 2:
        return
    opened = [place for place, slot in enumerate(slots) if slot.open and slot.kind != "tensors"]
    named = [place for place in opened if slots[place].name in TARGETS] or opened[-1:]
    for kind, dimensions in (("int", 1), ("int", 2), ("bool", 2)):
        family = []
        for shape in _ROWS:
            plain = _with_shapes(slots, [shape] * count)
            swapped = {place: Made(shape[:dimensions], kind, grad=False) for place in named}
            family.append(replace(plain, entries=tuple(swapped.get(i, e) for i, e in enumerate(plain.entries))))
        yield family


def _with_targets_and_counts(slots: tuple[Slot, ...], count: int) -> Iterator[list[Guess]]:
    """A tensor, integers where a name asks for them, and for what is left how many of these there may be."""
    if count < 3 or not any(slot.open and slot.name in TARGETS for slot in slots):
        return
    first = next((place for place, slot in enumerate(slots) if slot.open and slot.name not in TARGETS), 0)
    for dimensions in (1, 2):
        family = []
        for shape in _ROWS:
            entries: list[object] = []
            for place, slot in enumerate(slots):
                if not slot.open:
                    entries.append(slot.value)
                elif slot.name in TARGETS:
                    entries.append(Made(shape[:dimensions], "int", grad=False))
                else:
                    entries.append(_open(slot, shape) if place == first or slot.kind == "tensor" else _COUNT)
            family.append(Guess(slots, tuple(entries)))
        yield family


# -- values -----------------------------------------------------------------------------------------------------------


def _tensor(
    entry: Made, generator: torch.Generator, dtype: torch.dtype, low: float, width: float, *, both: bool
) -> torch.Tensor:
    count = int(torch.Size(entry.shape).numel())
    if entry.kind != "float":
        if entry.kind == "bool":
            return (torch.arange(count, device="cpu") % 2).view(entry.shape).bool()
        return (torch.arange(count, device="cpu") % 4).sign().view(entry.shape)  # more ones than zeros, in order
    values = torch.rand(entry.shape, generator=generator, dtype=torch.float64, device="cpu")
    values = values * width + low
    if both:  # half of them, so that no sign is left out by chance
        odd = torch.randperm(count, generator=generator, device="cpu").view(entry.shape) % 2
        values = torch.where(odd == 1, values, -values)
    return values.to(dtype).requires_grad_(entry.grad)


def fresh(args: tuple[object, ...]) -> tuple[tuple[object, ...], list[tuple[int, torch.Tensor]]]:
    """Copies to pass, which may be written to, and the leaves behind them that require grad, with their place."""
    leaves: list[tuple[int, torch.Tensor]] = []

    def passed(place: int, arg: object) -> object:
        def copy(tensor: torch.Tensor) -> torch.Tensor:
            leaf = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            if leaf.requires_grad:
                leaves.append((place, leaf))
            return leaf.clone()

        return replace_tensors(arg, copy)

    return tuple(passed(place, arg) for place, arg in enumerate(args)), leaves


def _text(entry: object) -> str:
    if isinstance(entry, list):
        return f"[{', '.join(map(_text, entry))}]"
    return "(last size,)" if isinstance(entry, LastSize) else str(entry)
