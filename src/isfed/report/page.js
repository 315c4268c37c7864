"use strict";
// Controls for what is already drawn. The rules for ticks, limits and labels are those of axis_ticks.py.
const SUPERS = { "-": "⁻" };
"⁰¹²³⁴⁵⁶⁷⁸⁹".split("").forEach((mark, digit) => { SUPERS[digit] = mark; });
const raised = (power) => String(power).replace(/[-0-9]/g, (c) => SUPERS[c]);
const powerOf = (step) => Math.floor(Math.log10(step) + 1e-9);
const minus = (text) => text.replace(/-/g, "−");

function tickStep(low, high, most) {
  const raw = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  return ([1, 2, 5].find((m) => m * power >= raw * (1 - 1e-9)) || 10) * power;
}

function plain(value, step, largest) {
  if (Math.abs(value) < step / 2) return "0";
  if (largest >= 1e12 || largest < 1e-3) {
    const digits = Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - powerOf(step));
    const [mantissa, exponent] = value.toExponential(digits).split("e");
    return minus(`${mantissa}×10${raised(Number(exponent))}`);
  }
  const [size, letter] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]]
    .find(([s]) => Math.abs(value) >= s * (1 - 1e-9)) || [1, ""];
  const digits = Math.max(0, -powerOf(step / size));
  let text = (value / size).toFixed(digits);
  if (letter && digits) text = text.replace(/\.?0+$/, "");
  return minus(text + letter);
}

function linearTicks(low, high, most = 6) {
  const step = tickStep(low, high, most);
  const largest = Math.max(Math.abs(low), Math.abs(high));
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i++) {
    ticks.push([i * step, plain(i * step, step, largest)]);
  }
  return ticks;
}

function logTicks(low, high, most = 6) {
  const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9);
  const ticks = [];
  if (last - first >= 2) {
    const stride = last - first > most + 2 ? Math.ceil((last - first) / most) : 1;
    const short = first >= -3 && last <= 3;
    for (let k = Math.ceil(first / stride) * stride; k <= last; k += stride) {
      ticks.push([k, short ? (10 ** k).toFixed(Math.max(0, -k)) : `10${raised(k)}`]);
    }
    return ticks;
  }
  for (let k = first - 1; k <= last; k++) {
    for (const m of [1, 2, 5]) {
      const at = k + Math.log10(m);
      if (at >= low - 1e-9 && at <= high + 1e-9) ticks.push([at, m, k]);
    }
  }
  if (ticks.length >= 3) {
    const short = ticks[0][2] >= -3 && ticks[ticks.length - 1][2] <= 3;
    return ticks.map(([at, m, k]) =>
      [at, short ? (m * 10 ** k).toFixed(Math.max(0, -k)) : `${m}×10${raised(k)}`]);
  }
  return linearTicks(10 ** low, 10 ** high, most)
    .filter(([value]) => value > 0).map(([value, text]) => [Math.log10(value), text]);
}

function limits(low, high, logarithmic) {
  if (logarithmic) {
    const room = Math.max(0.03 * (high - low), 0.02);
    return [low - room, high + room];
  }
  if (high - low <= 1e-12 * Math.max(Math.abs(low), Math.abs(high))) {
    const room = 0.5 * Math.abs(high) || 1;
    [low, high] = [low - room, high + room];
  }
  if (low > 0 && low < 0.5 * high) low = 0;
  const step = tickStep(low, high, 6);
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

function spread(wanted, gap, top = 0, bottom = 100) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b] || a - b);
  const groups = [];
  for (const i of order) {
    groups.push([Math.min(Math.max(wanted[i], top), bottom), 1]);
    while (groups.length > 1) {
      const [second, m] = groups[groups.length - 1], [first, n] = groups[groups.length - 2];
      if (second - first >= gap * ((m + n) / 2)) break;
      const half = gap * (n + m - 1) / 2, middle = (first * n + second * m) / (n + m);
      groups.splice(-2, 2, [Math.max(Math.min(middle, bottom - half), top + half), n + m]);
    }
  }
  const places = groups.flatMap(([middle, n]) =>
    Array.from({ length: n }, (_, j) => middle + gap * (j - (n - 1) / 2)));
  return wanted.map((_, i) => places[order.indexOf(i)]);
}

const percent = (share) => `${(100 * share).toFixed(2)}%`;
const numbers = (text) => text.split(" ").map(Number);

function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  const picked = (name) => figure.querySelector(`input[data-for="${name}"]:checked`);
  const axis = picked("axis") ? picked("axis").value : plot.dataset.axis;
  const scale = picked("scale") ? picked("scale").value : plot.dataset.scale;
  const off = new Set([...figure.querySelectorAll(".methods input:not(:checked)")].map((i) => i.value));
  const shown = [];
  for (const node of plot.querySelectorAll(".series")) {
    node.toggleAttribute("hidden", off.has(node.dataset.index));
    if (off.has(node.dataset.index)) continue;
    const [low, high, last] = numbers(node.dataset[scale]);
    const unit = Number(node.dataset.units.split(" ").find((u) => u.startsWith(`${axis}=`)).split("=")[1]);
    const [from, to] = numbers(node.dataset.x).map((x) => x * unit);
    shown.push({ node, low, high, last, from, to });
  }
  const of = (key, pick, otherwise) => (shown.length ? pick(...shown.map((s) => s[key])) : otherwise);
  const [bottom, top] = limits(of("low", Math.min, 0), of("high", Math.max, 1), scale === "log");
  const right = of("to", Math.max, 1);
  const height = (value) => (top - value) / (top - bottom);
  for (const { node, low, high, from, to } of shown) {
    const up = 1000 / (top - bottom), across = 1000 / right;
    const parts = [across * (to - from) / 4000, 0, 0, up * (high - low) / 4000, across * from, up * (top - high)];
    node.querySelector(`.${scale}`).setAttribute("transform", `matrix(${parts.map((p) => Number(p.toPrecision(6))).join(" ")})`);
  }
  plot.querySelector(".y-ticks").replaceChildren(
    ...(scale === "log" ? logTicks : linearTicks)(bottom, top).flatMap(([at, text]) => {
      const y = percent(height(at));
      return [element("line", { x1: 0, x2: "100%", y1: y, y2: y }),
        element("text", { x: 0, y, dx: -8, dy: "0.35em" }, text)];
    }));
  plot.querySelector(".x-ticks").replaceChildren(
    ...linearTicks(0, right).flatMap(([at, text]) => {
      const x = percent(at / right);
      return [element("line", { x1: x, x2: x, y1: 0, y2: "100%" }),
        element("text", { x, y: "100%", dy: "1.3em" }, text)];
    }));
  const last = new Map(shown.map((s) => [s.node.dataset.index, s.last]));
  const named = (label) => last.size <= 12 && last.has(label.dataset.index);
  const labels = [...plot.querySelectorAll(".labels text")];
  labels.forEach((label) => label.toggleAttribute("hidden", !named(label)));
  const visible = labels.filter(named);
  spread(visible.map((label) => 100 * height(last.get(label.dataset.index))), 4.8)
    .forEach((y, i) => visible[i].setAttribute("y", `${y.toFixed(2)}%`));
  plot.parentNode.classList.toggle("crowded", shown.length > 8);
  plot.dataset.axis = axis;
  plot.dataset.scale = scale;
  if (picked("axis")) plot.querySelector(".x-label").textContent = picked("axis").dataset.label;
  figure.querySelector(".scale-note").textContent = scale === "log" ? ", logarithmic axis" : "";
  const along = plot.querySelector(".x-label").textContent;
  figure.querySelector(".status").textContent =
    `${shown.length} curves shown, by ${along}, ${scale === "log" ? "logarithmic" : "linear"} axis`;
}

function sortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a !== undefined && b !== undefined) return down ? b - a : a - b;
        if (a !== undefined || b !== undefined) return a === undefined ? 1 : -1; // no number: last
        const order = one.cells[column].textContent.localeCompare(other.cells[column].textContent);
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

// Tables that go on beyond the edge say so.
function markWide() {
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
  }
}

for (const hidden of document.querySelectorAll("[data-script]")) hidden.hidden = false;
for (const figure of document.querySelectorAll("figure")) {
  figure.addEventListener("change", () => draw(figure));
}
document.querySelectorAll("table.sortable").forEach(sortable);
markWide();
addEventListener("resize", markWide);
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", markWide));
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
});
