"""The page's style: one sheet for light and dark, for screens of any width and for paper."""

from __future__ import annotations

from decodeonce.cli.report.markup import Markup

STYLE = Markup("""
:root { color-scheme: light dark;
  --paper: #f6f6f3; --card: #ffffff; --ink: #1d2125; --soft: #59626b; --rule: #dfdfd9; --accent: #2b648f;
  --on-accent: #ffffff; --warm: #b8571b; --good: #2a6a3c; --bad: #b3202c; --red: #bf2b22; --green: #2a7a35;
  --blue: #2659b8; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #131619; --card: #1b1f23; --ink: #e6e8ea; --soft: #a5aeb7; --rule: #343a41; --accent: #79aedb;
  --on-accent: #10151a; --warm: #e29a63; --good: #7fca97; --bad: #f38f8c; --red: #f2867d; --green: #7fcb86;
  --blue: #8db2f6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif;
  overflow-wrap: anywhere; }
header, main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
footer { padding-bottom: 3rem; color: var(--soft); font-size: .875rem; }
h1 { margin: 0 0 .4rem; font-size: 2rem; line-height: 1.2; font-weight: 650; letter-spacing: -.01em; }
h2 { margin: 0 0 .75rem; font-size: 1.3rem; line-height: 1.3; font-weight: 620; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1rem; font-weight: 620; }
p { margin: .5rem 0 1rem; max-width: 46rem; }
header p { font-size: 1.075rem; }
a { color: var(--accent); }
code { font: .9em ui-monospace, monospace; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1.25rem 0 0; padding: 0; list-style: none; }
nav a { display: inline-block; padding: .15rem 0; }
section { margin: 1.75rem 0; padding: 1.5rem; background: var(--card); border: 1px solid var(--rule);
  border-radius: .75rem; }
section > :last-child { margin-bottom: 0; }
.verdict { font-weight: 600; color: var(--good); }
.verdict.bad, .bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1.1rem 1.5rem; margin: 0; }
.facts dt { color: var(--soft); font-size: .85rem; }
.facts dd { margin: 0; font-size: 1.15rem; font-weight: 550; font-variant-numeric: tabular-nums; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.25rem, 1fr)); gap: 1.1rem .9rem;
  margin: 1rem 0; padding: 0; list-style: none; }
figure { margin: 0; }
.sheet img { display: block; max-width: 100%; height: auto; border-radius: .25rem; background: var(--rule); }
.sheet .none { display: grid; place-content: center; width: 100%; aspect-ratio: 1; padding: .5rem; text-align: center;
  font-size: .8rem; color: var(--soft); border: 1px dashed var(--soft); border-radius: .25rem; }
.sheet .damaged img, .sheet .damaged .none { outline: 3px solid var(--bad); outline-offset: 1px; }
figcaption { margin-top: .4rem; font-size: .8rem; line-height: 1.35; }
figcaption span { display: block; color: var(--soft); }
figcaption .bad { color: var(--bad); font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.5rem;
  align-items: start; margin: 1rem 0; }
.charts figcaption { font-size: .875rem; color: var(--soft); }
.chart { display: block; width: 100%; max-width: 36rem; height: auto; font: 11px system-ui, sans-serif; }
.chart text { fill: var(--soft); }
.chart .within { fill: var(--ink); }
.chart .rule { stroke: var(--rule); }
.chart .bar, .chart .cell { fill: var(--accent); }
.chart .pale { fill-opacity: .3; }
.chart .warm { fill: var(--warm); }
.chart .area { fill: var(--accent); fill-opacity: .3; stroke: var(--accent); stroke-width: 1.5; }
.chart .mark { fill: none; stroke: var(--warm); stroke-width: 1.5; stroke-dasharray: 4 3; }
.chart .line { fill: none; stroke: var(--ink); stroke-width: 1.3; }
.chart .channel0 { stroke: var(--red); }
.chart .channel1 { stroke: var(--green); stroke-dasharray: 6 1.5; }
.chart .channel2 { stroke: var(--blue); stroke-dasharray: 2 1; }
.scroll { overflow-x: auto; margin: .75rem 0; }
.long { max-height: 30rem; overflow-y: auto; }
table { overflow-wrap: break-word; border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem 1.25rem .35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
thead th { color: var(--soft); font-weight: 550; }
tbody th { font-weight: 500; }
td, tbody th { min-width: 4.5rem; max-width: 34rem; }
td.n, th.n { min-width: 0; padding: .35rem .75rem .35rem .1rem; text-align: right; white-space: nowrap; }
details { margin: 1rem 0; }
summary { cursor: pointer; color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 32rem) { header, main, footer { padding-left: .75rem; padding-right: .75rem; }
  section { padding: 1.1rem .9rem; } h1 { font-size: 1.6rem; } }
@media print { :root { color-scheme: light; --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #ccc;
    --accent: #2b648f; --warm: #b8571b; --good: #2a6a3c; --bad: #b3202c; --red: #bf2b22; --green: #2a7a35;
    --blue: #2659b8; }
  body { font-size: 11pt; } nav { display: none; } section { padding: 0; border: 0; }
  figure, tr { break-inside: avoid; }
  .long { max-height: none; } h2, h3 { break-after: avoid; } }
""")
