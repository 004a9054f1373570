"""What each operation of pullback.ops costs: the cases, how they are measured, and the tables of the results."""
