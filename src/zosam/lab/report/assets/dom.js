// Elements are made here and nowhere else; text goes in as text, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const KINDS = {}; // kind -> (figure, stage) => {draw(width) -> node, picture(width) -> svg, rows() -> table}
const SVG = "http://www.w3.org/2000/svg";
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

function dress(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
// Text that goes on in the next line, but not within 5e-4, ZO-SAM or 90 %.
const unbroken = (text) => text.split(/((?:\b\de|\bZO|S²)-\w+|[\d.,]+ [%×])/).map((piece, i) => (i % 2 ? dress(document.createElement("span"), { class: "unbroken" }, [piece]) : piece));
const el = (tag, attributes = {}, ...children) =>
  dress(document.createElement(tag), attributes, tag === "option" ? children : children.flatMap((child) => (typeof child === "string" ? unbroken(child) : [child])));
const svg = (tag, attributes = {}, ...children) => dress(document.createElementNS(SVG, tag), attributes, children);

function button(label, action, attributes = {}) {
  return el("button", { type: "button", onclick: action, ...attributes }, label);
}

function chooser(label, options, action, chosen = 0) {
  const select = el("select", { onchange: () => action(select.selectedIndex) });
  options.forEach((option) => select.append(el("option", {}, option)));
  select.selectedIndex = chosen;
  return el("label", { class: "tool" }, `${label} `, select);
}

// The colours of the present theme, read when something is drawn.
function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const dark = Number(document.documentElement.dataset.theme === "dark");
  const names = ["ink", "soft", "rule", "grid", "paper", "empty"];
  return {
    ...Object.fromEntries(names.map((name) => [name, read(`--${name}`)])),
    series: (i) => DATA.series[i % DATA.series.length][dark],
    of: (thing, i = 0) => (DATA.styles[thing.arm ?? thing.name] || DATA.series[i % DATA.series.length])[dark],
  };
}

// Dash and mark of a series say how sparse it is, its colour says which optimizer.
const sparsityOf = (thing) => Math.max(0, DATA.sparsities.indexOf(thing.sparsity));
const dashOf = (thing) => (thing.dashed ? "6 4" : DATA.dashes[sparsityOf(thing) % DATA.dashes.length]) || null;

const apart = (name) => `\u2068${name}\u2069`; // whatever direction a name is written in, the text around it keeps its own
const slug = (name) => name.replace(/[^\w.-]+/g, "_").slice(0, 80) || "unnamed";

// A number for people: whole numbers in full, others with four digits.
function show(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return value.toLocaleString("en").replace("-", "−");
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replaceAll("-", "−");
}

function duration(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [0, "s"]].find(([least]) => seconds >= least);
  return `${(seconds / (size || 1)).toFixed(size || seconds < 9.95 ? 1 : 0)} ${unit}`;
}

// A formatter that gives all values the same number of decimals, where they are of one size.
function evenly(values) {
  const known = values.filter((value) => value !== null).map(show);
  const digits = Math.max(0, ...known.map((text) => text.split(".")[1]?.length || 0));
  const even = digits <= 4 && !known.some((text) => text.includes("e"));
  return (value) => (even && value !== null ? value.toFixed(digits).replace("-", "−") : show(value));
}

const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text, size = 12, weight = 400) {
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

function clip(text, width, size = 12, weight = 400) {
  if (textWidth(text, size, weight) <= width) return text;
  const letters = Array.from(text).slice(0, 200);
  while (letters.length > 1 && textWidth(`${letters.join("")}…`, size, weight) > width) letters.pop();
  return `${letters.join("")}…`;
}

// One read-out for the whole page, beside the pointer: lines of {text, colour}.
const tip = {
  node: document.getElementById("tip"),
  show(event, lines) {
    const mark = (line) => {
      const swatch = el("i");
      swatch.style.background = line.colour || "transparent";
      return el("div", { dir: "auto" }, line.colour ? swatch : null, line.text);
    };
    this.node.replaceChildren(...lines.map(mark));
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
  },
  hide() { this.node.hidden = true; },
};
