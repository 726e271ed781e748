"use strict";
// Tables of the page's data, column by column: {columns: [{key, title, unit, digits, ...cells}], count}.

/** Cell of a column at a row: the original word or number, null if there is none. */
function cellOf(column, row) {
  if ("same" in column) return column.same;
  if ("numbers" in column) return column.numbers[row];
  return column.words[column.codes[row]];
}

/** Rows (numbers) whose cells equal all those in `wanted`. */
function rowsWhere(table, wanted) {
  const columns = Object.keys(wanted).map((key) => table.columns.find((column) => column.key === key));
  const values = Object.values(wanted);
  const rows = [];
  for (let row = 0; row < table.count; row += 1) {
    if (columns.every((column, place) => cellOf(column, row) === values[place])) rows.push(row);
  }
  return rows;
}

/** Rows as objects, as Vega takes them. */
function objectsOf(table, rows) {
  return rows.map((row) => Object.fromEntries(table.columns.map((column) => [column.key, cellOf(column, row)])));
}

const formats = new Map();

/** A cell as a reader sees it. */
function written(column, value) {
  if (value === null || value === "") return "";
  if (typeof value !== "number") return String(value);
  const digits = isWhole(column) ? 0 : column.digits;
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits).format(value);
}

/** Whether a column holds counts, which have no decimals. */
function isWhole(column) {
  if (column.whole === undefined) {
    const cells = "same" in column ? [column.same] : column.numbers || [];
    column.whole = cells.every((cell) => cell === null || Number.isInteger(cell)) && !column.unit;
  }
  return column.whole;
}

function isNumeric(column) {
  return "numbers" in column || typeof column.same === "number";
}

/** An element with attributes, properties (`on...`, `text`) and children. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}
