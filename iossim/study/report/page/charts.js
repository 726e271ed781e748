"use strict";
// The figures: each panel is drawn when it comes near the screen, and again when its content or the theme changes.

const NARROW = 480;

class FigureView {
  constructor(root, figure, data) {
    this.root = root;
    this.figure = figure;
    this.data = data;
    this.chosen = {};
    this.drawn = new Map();
    this.panels = [...root.querySelectorAll(".panel")];
    this.selects = [...root.querySelectorAll("select[data-choice]")];
    this.selects.forEach((select) => select.addEventListener("change", () => this.choose(select)));
    this.fillChoices();
    this.panels.forEach((panel, place) => {
      for (const button of panel.querySelectorAll("[data-save]")) {
        button.addEventListener("click", () => this.save(place, button.dataset.save));
      }
    });
    this.hideEmpty();
    const table = root.querySelector("details.data");
    table.addEventListener("toggle", () => this.fillTable(table), { once: true });
  }

  fillTable(details) {
    const name = this.root.querySelector("h2, h3").textContent;
    new DataTable(details.querySelector(".host"), this.figure, { name: `Data of ${name}`, shown: this.figure.shown });
  }

  /** Values of each choice that are compatible with earlier ones; the selection is kept if possible. */
  fillChoices() {
    for (const select of this.selects) {
      const key = select.dataset.choice;
      const before = Object.fromEntries(this.figure.choices.slice(0, this.figure.choices.indexOf(key)).map((k) => [k, this.chosen[k]]));
      const column = this.figure.columns.find((each) => each.key === key);
      const values = [...new Set(rowsWhere(this.figure, before).map((row) => cellOf(column, row)))];
      if (!values.includes(this.chosen[key])) [this.chosen[key]] = values;
      select.values = values;
      select.replaceChildren(...values.map((value, place) => element("option", { value: String(place), text: String(value) })));
      select.value = String(values.indexOf(this.chosen[key]));
    }
  }

  choose(select) {
    this.chosen[select.dataset.choice] = select.values[Number(select.value)];
    this.fillChoices();
    this.hideEmpty();
    this.redraw();
  }

  rowsOf(place) {
    return rowsWhere(this.figure, { ...this.chosen, ...this.figure.panels[place].where });
  }

  hideEmpty() {
    this.panels.forEach((panel, place) => {
      panel.hidden = this.rowsOf(place).length === 0;
    });
  }

  /** Draw a panel, unless it is drawn already. */
  draw(place) {
    if (!this.drawn.has(place) && !this.panels[place].hidden) this.drawn.set(place, this.embed(place));
    return this.drawn.get(place);
  }

  redraw() {
    // Figures keep the text with which they were drawn; those that only now became visible are drawn too.
    const places = this.seen ? this.panels.map((_, place) => place) : [...this.drawn.keys()];
    for (const made of this.drawn.values()) made.then((result) => result && result.finalize());
    this.drawn.clear();
    return Promise.all(places.map((place) => this.draw(place)));
  }

  async embed(place) {
    this.seen = true;
    const host = this.panels[place].querySelector(".chart");
    const theme = currentTheme();
    const config = structuredClone(this.data.themes[theme]);
    // All panels share the legend above them.
    config.legend = { ...config.legend, disable: true };
    const result = await this.embedIn(host, place, config, theme);
    host.dataset.drawn = theme;
    return result;
  }

  embedIn(host, place, config, theme) {
    if (host.clientWidth < NARROW) config.axis.labelLimit = 96;
    const spec = structuredClone(this.figure.panels[place].spec);
    if (host.clientWidth < NARROW) limitLabels(spec, 96);
    spec.data = { name: "rows", values: objectsOf(this.figure, this.rowsOf(place)) };
    host.replaceChildren();
    // Vega-Lite warns of a chart that is as wide as its container and a step a bar high; Vega draws one.
    spec.width = host.clientWidth;
    spec.autosize = "pad";
    return vegaEmbed(host, spec, {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      logLevel: 1, // errors alone: a slice may lack the records of a mark, of which Vega warns
      config,
      patch: asWideAsItsContainer,
      tooltip: { theme },
    });
  }

  async save(place, format) {
    // A separate picture, on white, with its legend.
    const width = this.panels[place].querySelector(".chart").clientWidth;
    const host = element("div", { class: "aside", style: `width: ${width}px` });
    document.body.append(host);
    const config = structuredClone(this.data.themes.light);
    config.background = "white";
    config.legend = { ...config.legend, orient: "top", columns: Math.max(1, Math.floor(width / 150)), title: null };
    const result = await this.embedIn(host, place, config, "light");
    const url = await result.view.toImageURL(format, format === "png" ? 2 : 1);
    element("a", { href: url, download: `${this.root.id}-${place + 1}.${format}` }).click();
    result.finalize();
    host.remove();
  }
}

/** A Vega specification whose width, with axes and labels, is its container's, also after that has changed. */
function asWideAsItsContainer({ width, signals = [], ...rest }) {
  const update = `isFinite(containerSize()[0]) ? containerSize()[0] : ${width}`;
  const follows = { name: "width", init: update, on: [{ update, events: "window:resize" }] };
  return { ...rest, autosize: { type: "fit-x", contains: "padding" }, signals: [...signals, follows] };
}

/** Axes with their own limits must respect the narrow one too. */
function limitLabels(spec, limit) {
  for (const layer of spec.layer || []) {
    for (const channel of Object.values(layer.encoding || {})) {
      if (channel.axis && channel.axis.labelLimit > limit) channel.axis.labelLimit = limit;
    }
  }
}
