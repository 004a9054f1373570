"""What benchmarks/what_works_where.py tries: operations as each library has them, and what is wanted of them."""
