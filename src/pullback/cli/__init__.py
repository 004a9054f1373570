"""The command line: ``pullback check | explain | env``.

Nothing here imports torch: checking runs in worker processes.
"""

from pullback.cli.app import main

__all__ = ["main"]
