"""What the graph keeps in memory: the ledger that lists it, and recompute, which has it keep less."""
