"use strict";
// Timeline and table are drawn from the data; a selected unit is highlighted in them and in the graph. The rows of the
// table are stages, or launches of streams: those have waits, and no bands. What a profiler recorded has lanes of its own
// below the simulated ones, on the same time axis.

const data = JSON.parse(document.getElementById("data").textContent);
const hosts = { timeline: document.getElementById("timeline"), graph: document.getElementById("graph"), table: document.getElementById("table") };
const LANE = 26, LINE = 11, MOST_LINES = 4, BOTTOM = 20, LEFT = 22, APART = 22;
const order = data.stages.flatMap((stage) => stage.groups.flat());
const stageOf = new Map(data.stages.flatMap((stage, number) => stage.groups.flat().map((unit) => [unit, number])));
const banded = data.label === "stage";
const recorded = data.recorded.kernels, kernels = [...data.kernels, ...recorded];
const end = Math.max(1, ...kernels.map((kernel) => kernel[3]));
const lanesOf = (some) => 1 + Math.max(0, ...some.map((kernel) => kernel[1]));
const lanes = lanesOf(data.kernels), lanesBelow = recorded.length ? lanesOf(recorded) : 0;
/** Height of a kernel's lane below the first one's. */
const laneTop = (place) => LANE * kernels[place][1] + (place < data.kernels.length ? 0 : lanes * LANE + APART);
const UNMATCHED = { name: "of no unit", short: "", shortest: "", colour: "#8b939c", ink: "black" };
let zoom = 1;
let chosen = [];

function made(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "rect", "text", "line", "path", "title"].includes(name);
  const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A step of 1, 2 or 5 times a power of ten that leaves about a hundred pixels between ticks. */
function tickStep(scale) {
  const least = 90 / scale, power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least);
}

/** Line of each text, 0 the lowest, such that none covers one to its right, or the most for one that is left out; of each its left and right end. */
function linesOf(texts) {
  const begins = [], lines = [];
  for (let number = texts.length - 1; number >= 0; number -= 1) {
    const [left, right] = texts[number], free = begins.findIndex((begin) => right <= begin);
    lines[number] = Math.min(free < 0 ? begins.length : free, MOST_LINES);
    if (lines[number] < MOST_LINES) begins[lines[number]] = left;
  }
  return lines;
}

/** Stages that are drawn with the places of their numbers, and blocks with those of their names above all numbers. */
function textsAbove(at) {
  if (!banded) return { numbers: [], blocks: [], height: 18 };
  const numbers = data.stages.map((stage, number) => ({ ...stage, number })).filter((stage) => stage.start !== null);
  const blocks = numbers.filter((stage, place) => place === 0 || stage.block !== numbers[place - 1].block);
  const middle = (stage) => (at(stage.start) + at(stage.end)) / 2, half = (stage) => 3.25 * stage.label.length + 1.5;
  const of = numbers.map((stage) => [middle(stage) - half(stage), middle(stage) + half(stage)]);
  const named = blocks.map(({ start, block }) => [Math.min(at(start), at(end) - 6.8 * block.length), 6.8 * block.length + 6]);
  const lowest = linesOf(of), first = Math.min(MOST_LINES, 1 + Math.max(0, ...lowest));
  const above = linesOf(named.map(([left, wide]) => [left, left + wide]));
  return {
    numbers: numbers.map((stage, place) => ({ ...stage, x: middle(stage), line: lowest[place] })),
    blocks: blocks.map(({ start, block }, place) => ({ block: above[place] < MOST_LINES ? block : "", start, x: named[place][0] + 3, line: first + above[place] })),
    height: 18 + LINE * Math.min(first + MOST_LINES - 1, first + Math.max(0, ...above)),
  };
}

function drawTimeline() {
  const width = Math.max(300, (hosts.timeline.clientWidth - 2) * zoom);
  const scale = (width - LEFT - 8) / end, at = (time) => LEFT + time * scale;
  const { numbers, blocks, height: TOP } = textsAbove(at);
  const below = TOP + lanes * LANE + APART, height = (lanesBelow ? below + lanesBelow * LANE : below - APART) + BOTTOM;
  const svg = made("svg", { width, height, role: "img", "aria-label": `${data.kernels.length} kernels in ${lanes} streams` });
  const add = (name, attributes, ...children) => svg.append(made(name, attributes, ...children));
  // What was recorded may take longer than the schedule, behind whose end nothing is a gap.
  const until = banded && lanesBelow ? Math.max(0, ...numbers.map((stage) => stage.end)) : end;
  add("rect", { x: LEFT, y: TOP, width: until * scale, height: lanes * LANE, fill: banded ? "var(--gap)" : "var(--card)" });
  for (const { number, start, end: to } of numbers) {
    const box = { x: at(start), y: TOP, width: (to - start) * scale, height: lanes * LANE };
    add("rect", { ...box, fill: "var(--card)" });
    add("rect", { ...box, class: "stage", "data-stage": number, fill: "var(--band)", stroke: "var(--page)", "stroke-width": 0.8 });
  }
  for (const { block, start, x, line } of blocks) {
    const height = TOP - 5 - LINE * line;
    add("line", { class: "block", x1: at(start), x2: at(start), y1: block ? height - 0.7 * LINE : TOP, y2: TOP + lanes * LANE });
    if (block) add("text", { class: "block", x, y: height }, block);
  }
  for (const { label, x, line } of numbers) {
    if (line < MOST_LINES) add("text", { class: "number", x, y: TOP - 5 - LINE * line, "text-anchor": "middle" }, label);
  }
  for (let lane = 0; lane < lanes; lane += 1) add("text", { x: 6, y: TOP + (lane + 0.65) * LANE }, String(lane));
  if (lanesBelow) {
    add("rect", { x: LEFT, y: below, width: width - LEFT - 8, height: lanesBelow * LANE, fill: "var(--card)" });
    add("text", { class: "recorded", x: LEFT, y: below - 6 }, data.recorded.title);
    for (let lane = 0; lane < lanesBelow; lane += 1) add("text", { x: 6, y: below + (lane + 0.65) * LANE }, String(lane));
  }
  kernels.forEach(([stage, , from, to, name, units], place) => {
    const wide = Math.max(0.8, (to - from) * scale), unit = data.units[units[0]] || UNMATCHED;
    const many = units.length > 1, row = data.stages[stage] || { why: [] }, top = TOP + laneTop(place);
    const title = made("title", {}, `${units.map((each) => data.units[each].name).join(" + ") || unit.name}\n${name}, ${(to - from).toFixed(1)} us`);
    const kind = `kernel${row.merged ? " merged" : ""}${row.critical ? " critical" : ""}`;
    add("rect", { class: kind, "data-kernel": place, x: at(from), y: top + 3, width: wide, height: LANE - 6, fill: unit.colour }, title);
    title.append(row.critical === undefined ? "" : `\n${row.why.join("\n")}`);
    const names = many ? [`${units.length} merged`, "merged"] : [unit.short, unit.shortest];
    const room = Math.floor((wide - 6) / 5.8), fitting = names.find((each) => each.length <= room);
    const label = fitting || (room > 5 ? `…${names[1].slice(1 - room)}` : "");
    if (label) {
      add("text", { class: "within", x: at(from) + wide / 2, y: top + 0.64 * LANE, "text-anchor": "middle", style: `fill:${unit.ink}` }, label);
    }
  });
  for (const [lane, from, other, to, critical] of data.waits) {
    const [x1, x2, y1, y2] = [at(from), at(to), TOP + (lane + 0.5) * LANE, TOP + (other + 0.5) * LANE];
    add("path", { class: critical ? "waits critical" : "waits", d: `M${x1} ${y1}L${x2} ${y2}m-3 ${y2 > y1 ? -6 : 6}l3 ${y2 > y1 ? 6 : -6}l3 ${y2 > y1 ? -6 : 6}` });
  }
  const step = tickStep(scale), digits = Math.max(0, 3 - Math.floor(Math.log10(step)));
  for (let tick = 0; tick * step <= end; tick += 1) {
    const x = at(tick * step);
    add("line", { x1: x, x2: x, y1: height - BOTTOM, y2: height - BOTTOM + 4, stroke: "var(--soft)" });
    const said = `${(tick * step / 1000).toFixed(Math.min(4, digits))}${tick === 0 ? " ms" : ""}`;
    add("text", { x: tick === 0 ? x : Math.min(x, width - 16), y: height - 5, "text-anchor": tick === 0 ? "start" : "middle" }, said);
  }
  hosts.timeline.replaceChildren(svg);
  light();
}

function rowOf(stage, number) {
  const what = made("td");
  for (const group of stage.groups) {
    const chips = group.map((unit) => {
      const of = data.units[unit];
      return made("button", { type: "button", class: "unit", "data-unit": unit, tabindex: -1, title: `${of.name}: ${of.facts}`, style: `--kind:${of.colour}` }, of.short);
    });
    what.append(made("div", { class: "group" }, ...chips, ...(stage.merged ? [made("span", {}, "merged")] : [])));
  }
  for (const line of stage.why) what.append(made("p", { class: "why" }, line));
  return made("tr", { "data-stage": number },
    made("th", { scope: "row", class: "figures" }, stage.label),
    made("td", { class: "figures" }, stage.takes), what);
}

/** Rows in order; equal layers are folded below a row that says what they are, and opens them. */
function drawRows() {
  const bodies = [made("tbody")];
  let folded = 0;
  data.stages.forEach((stage, number) => {
    if (stage.fold) {
      folded = stage.fold[0];
      const inside = made("tbody", { hidden: "" }), button = made("button", { type: "button", class: "fold", "aria-expanded": "false" }, stage.fold[1]);
      button.addEventListener("click", () => open(inside, inside.hidden));
      bodies.at(-1).append(made("tr", {}, made("th", { scope: "row", class: "figures" }, `${number}–${number + folded - 1}`), made("td"), made("td", {}, button)));
      bodies.push(inside);
    }
    bodies.at(-1).append(rowOf(stage, number));
    if (folded && --folded === 0) bodies.push(made("tbody"));
  });
  const head = made("tr", {}, ...[[data.label, "figures"], ["us", "figures"], [data.content, ""]].map(([title, kind]) => made("th", { scope: "col", class: kind }, title)));
  hosts.table.append(made("table", { class: "stages" }, made("thead", {}, head), ...bodies));
}

function open(body, isOpen = true) {
  body.hidden = !isOpen;
  body.previousElementSibling.querySelector("tr:last-child .fold").setAttribute("aria-expanded", String(isOpen));
}

/** Scroll a host, not the page, so that one of its elements is visible. */
function reveal(host, element) {
  if (!element) return;
  const [frame, box] = [host.getBoundingClientRect(), element.getBoundingClientRect()];
  const smooth = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  if (box.top < frame.top + 30 || box.bottom > frame.bottom - 10 || box.left < frame.left || box.right > frame.right) {
    host.scrollBy({ top: box.top - frame.top - frame.height / 3, left: box.left - frame.left - frame.width / 3, behavior: smooth });
  }
}

function light() {
  const units = new Set(chosen), stages = new Set(chosen.map((unit) => stageOf.get(unit)));
  document.documentElement.classList.toggle("chosen", units.size > 0);
  const set = (selector, isLit) => document.querySelectorAll(selector).forEach((each) => each.classList.toggle("lit", isLit(each.dataset)));
  set("[data-unit]", (of) => units.has(Number(of.unit)));
  set("[data-kernel]", (of) => kernels[of.kernel][5].some((unit) => units.has(unit)));
  set(".edge", (of) => units.has(Number(of.from)) || units.has(Number(of.to)));
  set("[data-stage]", (of) => stages.has(Number(of.stage)));
}

function choose(units) {
  chosen = units;
  for (const button of units.slice(0, 1).map((unit) => hosts.table.querySelector(`[data-unit="${unit}"]`))) {
    const body = button?.closest("tbody");
    if (body?.hidden) open(body);
  }
  light();
  const said = document.getElementById("chosen");
  if (!units.length) {
    said.textContent = "No unit is selected.";
    history.replaceState(null, "", "#");
    return;
  }
  const stage = data.stages[stageOf.get(units[0])];
  const timesIn = (some) => some.filter((kernel) => kernel[5].some((unit) => units.includes(unit)))
    .map((kernel) => `${kernel[4]} ${(kernel[3] - kernel[2]).toFixed(1)} us`).join(", ");
  const below = timesIn(recorded), times = (timesIn(data.kernels) || "no kernel of its own") + (below && ` · recorded: ${below}`);
  const names = units.map((unit) => data.units[unit].name).join(" + ");
  said.replaceChildren(made("b", {}, names), ` · ${data.units[units[0]].facts} · ${stage.block ? `stage ${stage.label} (${stage.block})` : `stream ${stage.label}`} · ${times}`);
  history.replaceState(null, "", `#unit=${encodeURIComponent(data.units[units[0]].name)}`);
  reveal(hosts.timeline, hosts.timeline.querySelector(".kernel.lit"));
  reveal(hosts.graph, hosts.graph.querySelector(".unit.lit"));
  reveal(hosts.table, hosts.table.querySelector("button.lit"));
}

/** Choose the next unit, in execution order, whose name or facts contain the text. */
function find(text, isNext) {
  const known = ({ name, facts }) => `${name} ${facts}`.toLowerCase();
  const found = order.filter((unit) => known(data.units[unit]).includes(text.toLowerCase()));
  if (!text || !found.length) {
    choose([]);
    document.getElementById("chosen").textContent = text ? `No unit has ${text} in its name.` : "No unit is selected.";
    return;
  }
  const place = (found.indexOf(chosen[0]) + (isNext ? 1 : 0)) % found.length;
  choose([found[Math.max(0, place)]]);
  document.getElementById("chosen").append(` · ${Math.max(0, place) + 1} of ${found.length} with ${text}`);
}

/** Zoom about the chosen kernel, or about the middle of what is shown. */
function setZoom(factor) {
  const host = hosts.timeline, lit = host.querySelector(".kernel.lit");
  const shown = lit ? Number(lit.getAttribute("x")) + Number(lit.getAttribute("width")) / 2 : host.scrollLeft + host.clientWidth / 2;
  const middle = shown / host.scrollWidth;
  zoom = factor ? Math.min(64, Math.max(1, zoom * factor)) : 1;
  drawTimeline();
  host.scrollLeft = middle * host.scrollWidth - host.clientWidth / 2;
}

(function start() {
  drawRows();
  drawTimeline();
  hosts.graph.scrollLeft = (hosts.graph.scrollWidth - hosts.graph.clientWidth) / 2;
  document.querySelector("main").addEventListener("click", (event) => {
    const unit = event.target.closest("[data-unit]"), kernel = event.target.closest("[data-kernel]");
    if (unit) choose([Number(unit.dataset.unit)]);
    else if (kernel) choose(kernels[kernel.dataset.kernel][5]);
    else if (event.target.closest("#timeline, #graph")) choose([]);
  });
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => setZoom(Number(button.dataset.zoom)));
  hosts.timeline.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    setZoom(event.deltaY < 0 ? 1.3 : 1 / 1.3);
  }, { passive: false });
  const finder = document.getElementById("find");
  finder.addEventListener("input", () => find(finder.value.trim(), false));
  finder.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Escape") finder.blur();
    if (event.key === "Enter") find(finder.value.trim(), true);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      const place = chosen.length ? order.indexOf(step > 0 ? chosen[chosen.length - 1] : chosen[0]) + step : step > 0 ? 0 : order.length - 1;
      if (order[place] !== undefined) choose([order[place]]);
    } else if (event.key === "+" || event.key === "=") setZoom(2);
    else if (event.key === "-") setZoom(0.5);
    else if (event.key === "Escape") choose([]);
    else if (event.key === "/") finder.focus();
    else return;
    event.preventDefault();
  });
  addEventListener("resize", drawTimeline);
  const toggle = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  toggle.setAttribute("aria-pressed", String(isDark()));
  toggle.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    toggle.setAttribute("aria-pressed", String(isDark()));
  });
  const name = decodeURIComponent(location.hash.replace(/^#unit=/, ""));
  const named = data.units.findIndex((unit) => unit.name === name);
  if (named >= 0) choose([named]);
})();
