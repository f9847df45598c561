// The page itself: what was found, what was run, and then section by section.
const main = document.getElementById("main");
const contents = el("ul");
const redraws = [];

function section(title) {
  const id = `section-${slug(title)}`, list = el("ul");
  const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title));
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
  const header = el("header", {}, el("h1", { dir: "auto" }, DATA.title));
  DATA.lead.forEach((text, i) => header.append(el("p", { class: i ? "second" : "lead", dir: "auto" }, text)));
  main.append(header);
  if (DATA.cover) addFigure({ add: (node) => header.append(node) }, DATA.cover);
  header.append(facts);
}

function addTable(place, table) {
  const id = `table-${slug(table.name)}`, view = tableView(table), notes = el("ul", { class: "notes" });
  for (const [text, mark] of view.letters) notes.append(el("li", { dir: "auto" }, el("sup", {}, mark), ` ${text}`));
  const said = [...view.letters.keys()];
  for (const text of (table.notes || []).filter((note) => !said.some((other) => note.includes(other)))) notes.append(el("li", { dir: "auto" }, text));
  place.add(el("article", { id, class: "table", "aria-labelledby": `${id}-title` }, heading(id, table, downloads(table.name, view)),
    table.note ? el("p", { class: "note", dir: "auto" }, table.note) : null, table.on ? el("p", { class: "note", dir: "auto" }, `Ours: ${table.on}.`) : null, view.node, notes.children.length ? notes : null), id, table.title);
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
if (DATA.questions.length) {
  const place = section("Questions");
  for (const question of DATA.questions) {
    const id = `question-${slug(question.name)}`, view = comparisonView(question.blocks, question.versus);
    place.add(el("article", { id, class: "table", "aria-labelledby": `${id}-title` }, heading(id, question, downloads(`question-${question.name}`, view)),
      el("p", { class: "note", dir: "auto" }, question.note), view.node), id, question.title);
  }
}
if (DATA.comparisons.length) {
  const view = comparisonView(DATA.comparisons), id = "comparisons", title = "Every arm, by setting";
  section(view.compared ? "Against SGD" : "Trainings").add(el("article", { id, class: "table", "aria-labelledby": `${id}-title` },
    heading(id, { title }, downloads("comparisons", view)),
    el("p", { class: "note" }, "Mean over seeds with Student's 95 % interval."
      + (view.compared ? " The difference is taken seed by seed; its bar is dark where the interval leaves zero out. "
      + "Where SGD was trained in several ways, the one with the highest mean is the reference; of the others, too, that one speaks for its optimizer above." : "")), view.node), id, title);
}
const sections = new Map();
for (const figure of DATA.figures) sections.set(figure.section, [...(sections.get(figure.section) || []), figure]);
for (const [title, figures] of sections) {
  const place = section(title);
  figures.forEach((figure) => addFigure(place, figure));
}
if (DATA.tables.length) {
  const place = section("Beside the paper");
  DATA.tables.forEach((table) => addTable(place, table));
}
const fold = el("details", {}, el("summary", {}, "Contents"), contents);
fold.open = matchMedia("(min-width: 72rem)").matches;
contents.addEventListener("click", () => { if (innerWidth < 1152) fold.open = false; });
document.getElementById("contents").append(toggle, fold);
wish.addEventListener("change", () => setTheme(wish.matches ? "dark" : "light"));
let before = "light";
addEventListener("beforeprint", () => { before = root.dataset.theme; setTheme("light"); });
addEventListener("afterprint", () => setTheme(before));
