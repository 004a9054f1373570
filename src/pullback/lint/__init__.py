"""``pullback lint``: finds wrong Functions in source, without running it and without torch.

The stages, each a module: `files` (which files, and their text), `source` (parsed), `names` (what a name stands for),
`functions` (which classes are Functions), `flow` (what each value of a method is made of), `uses` (where Functions are
called), `analysis` (all of that for one Function), `rules` (what is wrong), `ignores` and `settings` (what is not to
be said), `run` (all of it in order).
"""

from __future__ import annotations

from pullback.lint.files import Note as Note
from pullback.lint.ignores import Ignore as Ignore
from pullback.lint.run import Linted as Linted
from pullback.lint.run import lint_paths as lint_paths
