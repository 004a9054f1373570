"""The command line: ``pullback check | lint | saved | explain | env``.

Nothing here imports torch: what runs other people's code does so in processes of its own.
"""

from pullback.cli.app import main

__all__ = ["main"]
