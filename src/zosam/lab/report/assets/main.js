// The page itself: head, contents, tables, figures.
const GROUPS = {
  lines: "Curves", surface: "Loss landscapes", heat: "Maps", bars: "Comparisons", tiles: "Feature maps", film: "Masks over training",
};
const main = document.getElementById("main");
const contents = el("ul");
const redraws = [];
const tables = [];

function section(id, title) {
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title));
  const list = el("ul");
  contents.append(el("li", {}, el("a", { href: `#${id}` }, title), list));
  main.append(node);
  return {
    add(child, childId, name) {
      node.append(child);
      list.append(el("li", {}, el("a", { href: `#${childId}`, title: name, dir: "auto" }, name)));
    },
  };
}

const tier = (thing) => (thing.tier ? el("span", { class: "tier" }, thing.tier) : null);
const heading = (id, thing, saves) => el("div", { class: "head" }, el("h3", { id: `${id}-title`, dir: "auto" }, thing.title, tier(thing)), saves);

function head() {
  const facts = el("dl", { class: "facts" });
  for (const [name, value] of Object.entries(DATA.facts)) facts.append(el("div", {}, el("dt", {}, name), el("dd", { dir: "auto" }, value)));
  main.append(el("header", {}, el("h1", { dir: "auto" }, DATA.title), facts, DATA.tables.length ? summary() : null));
}

// How many cells have which verdict; a click shows them in every table.
function summary() {
  const rows = DATA.tables.flatMap((table) => table.rows);
  const cells = rows.filter((row) => !row.control).flatMap((row) => row.cells).filter(Boolean);
  const controls = rows.filter((row) => row.control).flatMap((row) => row.cells).filter(wasRun).length;
  const run = cells.filter(wasRun).length;
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const words = el("div", { class: "words" });
  let chosen = "everything";
  for (const [word, [, colour]] of Object.entries(DATA.verdicts)) {
    const count = cells.filter((cell) => cell.verdict === word).length;
    if (!count) continue;
    const piece = el("i");
    piece.style.flexGrow = count;
    piece.style.background = colour;
    bar.append(piece);
    if (!word) {
      words.append(el("span", { class: "plain" }, el("strong", {}, show(count)), " without a verdict"));
      continue;
    }
    words.append(button("", (event) => {
      chosen = chosen === word ? "everything" : word;
      tables.forEach((table) => table.filter(chosen));
      for (const other of words.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === event.currentTarget && chosen === word));
    }, { class: "verdict", "aria-pressed": "false" }));
    words.lastChild.append(el("strong", {}, show(count)), " ", chip(word));
  }
  const lead = el("p", { class: "lead" }, el("strong", {}, show(run)), ` of ${show(cells.length)} cells of the paper's tables were run here`,
    controls ? `, and ${show(controls)} of our own as controls.` : ".");
  return el("div", { class: "summary" }, lead, bar, words);
}

function addTable(place, table) {
  const id = `table-${slug(table.name)}`, view = tableView(table);
  tables.push(view);
  const notes = el("ul", { class: "notes" });
  for (const [text, mark] of view.letters) notes.append(el("li", { dir: "auto" }, el("sup", {}, mark), ` ${text}`));
  for (const text of table.notes || []) notes.append(el("li", { dir: "auto" }, text));
  const node = el("article", { id, class: "table", "aria-labelledby": `${id}-title` }, heading(id, table, downloads(table.name, view)),
    table.note ? el("p", { class: "note", dir: "auto" }, table.note) : null,
    el("div", { class: "tools" }, ...view.tools.filter(Boolean)), view.box,
    notes.children.length ? notes : null);
  place.add(node, id, table.title);
}

function addFigure(place, figure) {
  const id = `figure-${slug(figure.name)}`;
  const box = el("div", { class: "drawing" }), tools = el("div", { class: "tools" }), hint = el("p", { class: "hint" });
  const width = () => Math.floor(box.clientWidth);
  const stage = { box, tools, redraw: () => put(), hint: (text) => { hint.textContent = text; } };
  const view = KINDS[figure.kind](figure, stage);
  const put = () => {
    if (!width()) return;
    const node = view.draw(width());
    if (box.firstChild !== node) box.replaceChildren(node);
  };
  place.add(el("figure", { id, "data-kind": figure.kind, "aria-labelledby": `${id}-title` }, heading(id, figure, downloads(figure.name, view, width)),
    tools.children.length ? tools : null, box, hint.textContent ? hint : null, figure.note ? el("figcaption", { dir: "auto" }, figure.note) : null), id, figure.title);
  redraws.push(put);
  let last = 0;
  new ResizeObserver(() => { if (width() !== last) { last = width(); put(); } }).observe(box);
}

const root = document.documentElement;
const wish = matchMedia("(prefers-color-scheme: dark)");
const toggle = button("", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"), { class: "theme" });
function setTheme(name) {
  root.dataset.theme = name;
  toggle.textContent = name === "dark" ? "Light" : "Dark";
  toggle.setAttribute("aria-label", `Change to the ${name === "dark" ? "light" : "dark"} theme`);
  redraws.forEach((redraw) => redraw());
}

setTheme(wish.matches ? "dark" : "light");
head();
if (DATA.tables.length) {
  const place = section("tables", "Tables");
  DATA.tables.forEach((table) => addTable(place, table));
}
for (const kind of new Set(DATA.figures.map((figure) => figure.kind))) {
  const place = section(`kind-${kind}`, GROUPS[kind]);
  DATA.figures.filter((figure) => figure.kind === kind).forEach((figure) => addFigure(place, figure));
}
const fold = el("details", {}, el("summary", {}, "Contents"), contents);
fold.open = matchMedia("(min-width: 72rem)").matches;
contents.addEventListener("click", () => { if (innerWidth < 1152) fold.open = false; });
document.getElementById("contents").append(toggle, fold);
wish.addEventListener("change", () => setTheme(wish.matches ? "dark" : "light"));
let before = "light";
addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); });
addEventListener("afterprint", () => setTheme(before));
