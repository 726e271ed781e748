"use strict";
// A table that sorts by its headers, filters, and shows a page of rows at a time, so that thousands cost no more than a few.

const PAGE_ROWS = 50;

class DataTable {
  /** `shown` columns are drawn; `filters` are keys of columns to choose values of; `name` is that of the region. */
  constructor(host, table, { name, shown = table.columns.length, filters = null }) {
    this.table = table;
    this.columns = table.columns.slice(0, shown);
    this.sorted = null;
    this.page = 0;
    this.only = null;
    this.chosen = {};
    this.words = "";
    this.status = element("p", { class: "status", role: "status" });
    this.body = element("tbody");
    this.heads = this.columns.map((column, place) => this.head(column, place));
    const whole = element(
      "table",
      { class: "rows" },
      element("caption", {}, element("span", { class: "unseen", text: `${name}; the buttons in the headers sort.` })),
      element("thead", {}, element("tr", {}, ...this.heads)),
      this.body,
    );
    this.before = element("button", { type: "button", text: "Previous", onclick: () => this.turn(-1) });
    this.after = element("button", { type: "button", text: "Next", onclick: () => this.turn(1) });
    this.where = element("span");
    this.pager = element("div", { class: "pager" }, this.before, this.after, this.where);
    host.append(
      ...(filters ? [this.filterBar(filters)] : []),
      this.status,
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, whole),
      this.pager,
    );
    this.refresh();
  }

  head(column, place) {
    const label = element("span", { text: column.title });
    if (column.unit) label.append(element("span", { class: "unit", text: column.unit }));
    const button = element(
      "button",
      { type: "button", onclick: () => this.sort(place) },
      label,
      element("span", { class: "arrow", "aria-hidden": "true" }),
    );
    return element("th", { scope: "col", "aria-sort": "none", "data-key": column.key, class: isNumeric(column) ? "figures" : null }, button);
  }

  filterBar(keys) {
    const search = element("input", {
      type: "search",
      oninput: () => {
        this.words = search.value.trim().toLowerCase();
        this.reset();
      },
    });
    const selects = keys.map((key) => {
      const column = this.table.columns.find((each) => each.key === key);
      const values = [];
      for (let row = 0; row < this.table.count; row += 1) {
        const value = cellOf(column, row);
        if (!values.includes(value)) values.push(value);
      }
      const select = element(
        "select",
        {
          "data-filter": key,
          onchange: () => {
            if (select.value === "") delete this.chosen[key];
            else this.chosen[key] = values[Number(select.value)];
            this.reset();
          },
        },
        element("option", { value: "", text: "all" }),
        ...values.map((value, place) => element("option", { value: String(place), text: String(value) })),
      );
      return element("label", { text: `${column.title} ` }, select);
    });
    const clear = element("button", { type: "button", text: "Clear filters", onclick: () => this.clear() });
    this.inputs = [search, ...selects.map((label) => label.querySelector("select"))];
    return element("div", { class: "filters" }, element("label", { text: "containing " }, search), ...selects, clear);
  }

  clear() {
    for (const input of this.inputs || []) input.value = "";
    this.words = "";
    this.chosen = {};
    this.only = null;
    this.reset();
  }

  /** Show only some rows. */
  showOnly(rows) {
    this.clear();
    this.only = new Set(rows);
    this.reset();
  }

  sort(place) {
    const descending = this.sorted && this.sorted.place === place && !this.sorted.descending;
    this.sorted = { place, descending };
    this.heads.forEach((head, index) => {
      const state = index !== place ? "none" : descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", state);
      head.querySelector(".arrow").textContent = { none: "", ascending: "▲", descending: "▼" }[state];
    });
    this.reset();
  }

  turn(pages) {
    this.page += pages;
    this.draw();
  }

  reset() {
    this.page = 0;
    this.refresh();
  }

  /** Text of a row, in lower case, for the search. */
  textOf(row) {
    this.texts = this.texts || [];
    if (this.texts[row] === undefined) {
      this.texts[row] = this.columns.map((column) => written(column, cellOf(column, row))).join(" ").toLowerCase();
    }
    return this.texts[row];
  }

  refresh() {
    let rows = rowsWhere(this.table, this.chosen);
    if (this.only) rows = rows.filter((row) => this.only.has(row));
    if (this.words) rows = rows.filter((row) => this.textOf(row).includes(this.words));
    if (this.sorted) {
      const column = this.columns[this.sorted.place];
      const sign = this.sorted.descending ? -1 : 1;
      const missing = (value) => value === null || value === "";
      // Missing values come last in either order; equal ones keep their order.
      rows = rows
        .map((row) => [cellOf(column, row), row])
        .sort(([left, first], [right, second]) => {
          if (missing(left) || missing(right)) return missing(left) - missing(right) || first - second;
          const order = typeof left === "number" && typeof right === "number"
            ? left - right
            : String(left).localeCompare(String(right), "en", { numeric: true });
          return sign * order || first - second;
        })
        .map(([, row]) => row);
    }
    this.found = rows;
    this.draw();
  }

  draw() {
    const first = this.page * PAGE_ROWS;
    const rows = this.found.slice(first, first + PAGE_ROWS);
    this.body.replaceChildren(...rows.map((row) => this.line(row)));
    const count = this.found.length.toLocaleString("en-US");
    const all = this.table.count.toLocaleString("en-US");
    this.status.textContent = this.found.length === this.table.count ? `${all} rows` : `${count} of ${all} rows`;
    this.where.textContent = `rows ${rows.length ? first + 1 : 0} to ${first + rows.length} of ${count}`;
    this.before.disabled = this.page === 0;
    this.after.disabled = first + PAGE_ROWS >= this.found.length;
    this.pager.hidden = this.found.length <= PAGE_ROWS;
  }

  line(row) {
    return element("tr", {}, ...this.columns.map((column) => {
      const value = cellOf(column, row);
      if (column.key === "schedule" && value && String(value).endsWith(".json")) {
        return element("td", { "data-key": column.key }, element("a", { href: encodeURI(value), text: "JSON" }));
      }
      const text = written(column, value);
      return element("td", { "data-key": column.key, class: isNumeric(column) ? "figures" : text.length > 60 ? "wraps long" : text.length > 16 ? "wraps" : null, text });
    }));
  }
}
