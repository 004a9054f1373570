"""1. A Function is written."""
