"use strict";
// What the theme leaves without a name for those who listen to a page, and what scrolls and takes no focus.
document$.subscribe(() => {
  document.querySelectorAll(".md-search[role=dialog]").forEach((each) => each.setAttribute("aria-label", "Search"));
  document.querySelectorAll(".md-toggle").forEach((each) => each.setAttribute("aria-hidden", "true"));
  document.querySelectorAll(".md-code__nav").forEach((each, place) => each.setAttribute("aria-label", `Code block ${place + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => each.setAttribute("tabindex", "0"));
  // The corner of a table whose rows have headings is no heading.
  document.querySelectorAll("th:empty").forEach((each) => each.replaceWith(document.createElement("td")));
});
