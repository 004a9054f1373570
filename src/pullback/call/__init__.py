"""2. A call becomes a node."""
