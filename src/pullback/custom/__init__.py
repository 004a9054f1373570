"""Derivative rules for a plain function, without a class: `pullback.custom_vjp` and `pullback.custom_jvp`."""
