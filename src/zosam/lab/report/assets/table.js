// Tables: what the paper printed beside what we measured, as a grid or as a list, filtered by verdict.
const wasRun = (cell) => Boolean(cell) && cell.ours !== "" && cell.verdict !== "not run";
const FILTERS = {
  "everything": () => true,
  "only what was run": wasRun,
};
for (const word of Object.keys(DATA.verdicts)) if (word) FILTERS[word] = (cell) => Boolean(cell) && cell.verdict === word;

function chip(verdict) {
  if (!verdict) return null;
  const [sign, colour] = DATA.verdicts[verdict];
  const node = el("span", { class: "chip" }, el("b", { "aria-hidden": "true" }, sign), verdict);
  node.style.setProperty("--chip", colour);
  return node;
}

function tableView(table) {
  const letters = new Map(); // a note of a cell is a footnote; the same note has the same letter
  table.rows.forEach((row) => row.cells.forEach((cell) => {
    if (cell?.note && !letters.has(cell.note)) letters.set(cell.note, letter(letters.size));
  }));
  const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.title });
  const status = el("span", { class: "reading", role: "status" });
  let filter = "everything", list = table.columns.length < 2;

  const foot = (cell) => (cell.note ? el("sup", { title: cell.note }, letters.get(cell.note)) : null);
  const line = (name, ...inside) => (inside.some(Boolean) ? el("div", { class: name }, ...inside) : null);

  function gridCell(cell, keep) {
    if (!cell) return el("td", { class: "none" }, "");
    return el("td", { class: keep(cell) ? null : "faded", "data-verdict": cell.verdict },
      line("ours", cell.ours || null, foot(cell)), line("paper", cell.paper ? `paper ${cell.paper}` : null),
      line("paper", cell.difference ? `difference ${cell.difference}` : null), chip(cell.verdict), line("cost", cell.cost ? `cost ${cell.cost}` : null));
  }

  function listRows(row, keep) {
    return row.cells.flatMap((cell, j) => (cell && keep(cell) ? [el("tr", { class: row.control ? "control" : null },
      el("th", { scope: "row", dir: "auto" }, row.name),
      table.columns.length > 1 ? el("td", { class: "word", dir: "auto" }, table.columns[j]) : null,
      el("td", {}, cell.paper), el("td", { class: "ours" }, cell.ours, foot(cell)), el("td", {}, cell.difference),
      el("td", { class: "word" }, chip(cell.verdict)), el("td", {}, cell.cost))] : []));
  }

  function gridRow(row, keep) {
    return el("tr", { class: row.control ? "control" : null },
      el("th", { scope: "row", dir: "auto" }, row.name), ...row.cells.map((cell) => gridCell(cell, keep)));
  }

  function redraw() {
    const keep = FILTERS[filter];
    const heads = list
      ? ["", ...(table.columns.length > 1 ? [""] : []), "paper", "ours ± CI", "difference", "verdict", "cost"]
      : ["", ...table.columns];
    const shown = table.rows.filter((row) => filter === "everything" || row.cells.some((cell) => cell && keep(cell)));
    const body = (control) => {
      const rows = shown.filter((row) => Boolean(row.control) === control);
      const lines = rows.flatMap((row) => (list ? listRows(row, keep) : [gridRow(row, keep)]));
      if (!lines.length) return null;
      const title = el("tr", { class: "part" }, el("th", { colspan: heads.length, scope: "rowgroup" }, el("span", {}, "Controls")));
      return el("tbody", { class: control ? "controls" : null }, control ? title : null, ...lines);
    };
    box.replaceChildren(el("table", { class: list ? "list" : "grid" },
      el("caption", {}, table.title),
      el("thead", {}, el("tr", {}, ...heads.map((head) => (head ? el("th", { scope: "col", dir: "auto" }, head) : el("td"))))),
      body(false), body(true)));
    const cells = table.rows.flatMap((row) => row.cells).filter(Boolean);
    const n = cells.filter(keep).length;
    status.textContent = filter === "everything" ? "" : `${n} of ${cells.length} cells`;
    select.value = filter;
  }

  const present = new Set(table.rows.flatMap((row) => row.cells.map((cell) => cell?.verdict)));
  const options = Object.keys(FILTERS).filter((name) => !(name in DATA.verdicts) || present.has(name));
  const select = el("select", { onchange: () => { filter = select.value; redraw(); } });
  options.forEach((name) => select.append(el("option", {}, name)));
  const shape = button(list ? "As a grid" : "As a list", () => {
    list = !list;
    shape.textContent = list ? "As a grid" : "As a list";
    redraw();
  });
  redraw();
  return {
    box, letters,
    tools: [el("label", { class: "tool" }, "show ", select), table.columns.length > 1 ? shape : null, status],
    filter(name) { filter = options.includes(name) ? name : filter; redraw(); },
    rows: () => [
      ["row", "control", "column", "paper", "ours", "difference", "verdict", "cost", "note"],
      ...table.rows.flatMap((row) => row.cells.flatMap((c, j) => (c ? [[
        row.name, row.control ? "yes" : "no", table.columns[j], c.paper, c.ours, c.difference, c.verdict, c.cost, c.note,
      ]] : []))),
    ],
  };
}

function letter(k) {
  return (k >= 26 ? letter(Math.floor(k / 26) - 1) : "") + String.fromCharCode(97 + (k % 26));
}
