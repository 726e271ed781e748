"use strict";

/** light or dark: the selected theme, or else the system's preference. */
function currentTheme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

(function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const toggle = document.getElementById("theme");
  const views = [...document.querySelectorAll("figure[data-figure]")].map(
    (root) => new FigureView(root, data.figures[root.dataset.figure], data),
  );
  const table = new DataTable(document.getElementById("table"), data.table, { name: "Table of all rows", filters: data.table.filters });

  const showTheme = () => toggle.setAttribute("aria-pressed", String(currentTheme() === "dark"));
  const redraw = () => {
    showTheme();
    for (const view of views) view.redraw();
  };
  toggle.addEventListener("click", () => {
    document.documentElement.dataset.theme = currentTheme() === "dark" ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  showTheme();

  // Draw figures near the screen first, then the others when idle, so that a print has them all.
  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        const view = views.find((each) => each.panels.includes(entry.target));
        view.draw(view.panels.indexOf(entry.target));
      }
    },
    { rootMargin: "500px 0px" },
  );
  for (const view of views) for (const panel of view.panels) near.observe(panel);
  const waiting = views.flatMap((view) => view.panels.map((_, place) => [view, place]));
  const whenIdle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  const drawNext = async () => {
    const [view, place] = waiting.shift() || [];
    if (!view) return;
    await view.draw(place);
    whenIdle(drawNext);
  };
  whenIdle(drawNext);

  for (const button of document.querySelectorAll("button[data-rows]")) {
    button.addEventListener("click", () => {
      table.showOnly(JSON.parse(button.dataset.rows));
      const heading = document.getElementById("rows-title");
      heading.setAttribute("tabindex", "-1");
      heading.focus();
      heading.scrollIntoView();
    });
  }
  addEventListener("beforeprint", () => {
    for (const view of views) view.panels.forEach((_, place) => view.draw(place));
  });
})();
