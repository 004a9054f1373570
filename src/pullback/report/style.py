"""How the page of `pullback.report.html` looks: light or dark as the reader's system is, and dark on white on paper."""

from __future__ import annotations

STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1e23; --soft: #5a616c; --line: #d8dce2; --panel: #f5f6f8;
  --error: #b3261e; --warning: #8a5300; --hint: #1d5fa6; --passed: #1b7340; --heat: #b3261e; --lost: #6a3fb5; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171b; --ink: #e6e8eb; --soft: #a0a7b2; --line: #363b44;
  --panel: #1e2127; --error: #ff8a80; --warning: #f0b44c; --hint: #82b8f5; --passed: #6fce92; --heat: #ff7a6e;
  --lost: #b99bf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
p, ul { margin: .4rem 0; }
ul { padding-left: 1.3rem; }
a { color: inherit; }
h1, h2, h3, p, li, dd, figcaption { overflow-wrap: anywhere; }
code, pre { font: .875em/1.45 ui-monospace, monospace; }
pre { margin: 0; padding: .6rem .75rem; overflow-x: auto; background: var(--panel); border: 1px solid var(--line);
  border-radius: .25rem; }
.soft { color: var(--soft); }
.error { color: var(--error); } .warning { color: var(--warning); } .hint { color: var(--hint); }
.passed { color: var(--passed); } .failed { color: var(--error); } .skipped, .aside { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; margin: .75rem 0; }
th { font-weight: 600; text-align: left; vertical-align: bottom; }
.numbers { display: flex; flex-wrap: wrap; gap: .5rem; margin: .75rem 0; padding: 0; list-style: none; }
.numbers li { padding: .25rem .75rem; background: var(--panel); border: 1px solid var(--line); border-radius: .25rem; }
.probes td { text-align: center; min-width: 1.35rem; padding: .15rem; border: 1px solid var(--line); }
.probes td a { display: block; text-decoration: none; font-weight: 700; }
.probes tbody th { padding: .15rem .75rem .15rem 0; white-space: nowrap; }
.probes thead th { padding: .15rem; font-weight: 400; }
.probes thead span { display: inline-block; writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap; }
.finding { margin: 1rem 0; padding: .75rem 1rem; border: 1px solid var(--line); border-left: .3rem solid currentColor;
  border-radius: .25rem; }
.finding > * { color: var(--ink); }
.finding > h3 { color: inherit; }
dl { display: grid; grid-template-columns: 6.5rem minmax(0, 1fr); gap: .35rem .75rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; }
figure { margin: .9rem 0 0; }
figcaption { color: var(--soft); font-size: .875rem; max-width: 46rem; }
svg { display: block; max-width: 100%; height: auto; margin-bottom: .4rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.ground { fill: none; stroke: var(--line); }
.heat { fill: var(--heat); }
.lost { fill: var(--lost); }
@media (max-width: 40rem) { body { padding: 1rem; } dl { grid-template-columns: minmax(0, 1fr); gap: .1rem; }
  dd { margin-bottom: .4rem; } }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --panel: #f5f5f5;
    --error: #a11b14; --warning: #7a4a00; --hint: #174f8c; --passed: #155f34; --heat: #a11b14; --lost: #5a33a0; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .wide { overflow: visible; } .probes { font-size: 7pt; } .probes td { min-width: 0; padding: 0 .1rem; }
  figure, tr, h2, h3, dt, svg { break-inside: avoid; } h2, h3, dt { break-after: avoid; } }
"""
"""The style sheet of the page."""
