// Rank results of the search: help and recipes first, and pages for contributors and benchmarks last.
// Other numbers are Sphinx's.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    if (docname.startsWith("contribute/") || docname === "reference/benchmarks") return score - 100;
    if (docname === "troubleshooting" || docname.startsWith("how-to/data/")) return score + 12;
    if (docname === "how-to/multi-gpu-and-resume") return score + 4; // the page about "resume"
    return docname === "faq" ? score + 6 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
