// Typesets what pymdownx.arithmatex marks, also after a page change without reload.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*", processHtmlClass: "arithmatex" },
};
document$.subscribe(() => {
  if (window.MathJax.typesetPromise) {
    MathJax.typesetPromise();
  }
});
