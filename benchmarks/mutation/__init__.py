"""Faults planted in right Functions: what they are, whether they can be seen, and which judge finds them.

`originals` names the right Functions. `kinds`, with the modules `arithmetic`, `shapes`, `calls`, `state`,
`transforms`, `usage`, `habits`, `history`, `surroundings`, `reckoning`, `bookkeeping`, `computed`, `kept`,
`approximate`, `claims`, `leftovers`, `mended`, `slips`, `derived`, `reported`, `ported` and those that begin with
`late`, says how a source is rewritten. `plant` writes the mutants to files, `observe` decides which of them anybody
could notice, `judges` asks the battery and PyTorch's two checks, `pool` runs it all in processes that may hang or
crash, and `tables` counts.
"""
