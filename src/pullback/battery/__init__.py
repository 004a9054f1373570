"""The proof by experiment: samples, probes, and `check`, which runs them all."""
