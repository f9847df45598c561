// Results as rows: the value by seed as dots, the paired difference as a bar with its interval, the cost.
const wasRun = (cell) => Boolean(cell) && cell.ours !== "" && cell.verdict !== "not run";

function chip(verdict) {
  if (!verdict) return null;
  const [sign, colour] = DATA.verdicts[verdict];
  const node = el("span", { class: "chip" }, el("b", { "aria-hidden": "true" }, sign), verdict);
  node.style.setProperty("--chip", colour);
  return node;
}

// A little drawing in a cell; its colours are the page's, so that it follows the theme by itself.
function little(wide, tall, label, marks) {
  const root = svg("svg", { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": label, class: "little" }, svg("title", {}, label));
  for (const [tag, attributes] of marks) root.append(svg(tag, attributes));
  return root;
}

// One dot for each seed, on the scale of the block.
function strip(seeds, domain) {
  const values = Object.entries(seeds), place = scale(domain, [6, 90]), x = (value) => Math.max(3, Math.min(93, place(value)));
  const label = values.map(([seed, value]) => `seed ${seed}: ${value.toFixed(2)}`).join(", ");
  return little(96, 18, label, [
    ["line", { class: "axis", x1: 0, x2: 96, y1: 9, y2: 9 }],
    ...values.map(([, value]) => ["circle", { class: "seed", cx: x(value), cy: 9, r: 3.4 }]),
  ]);
}

// The difference with its interval around zero: dark if the interval leaves zero out; arrows where it goes on.
function gapBar(gap, reach) {
  const x = (value) => 60 + (Math.max(-1.03, Math.min(1.03, value / reach)) * 56), half = gap.half ?? 0;
  const [low, high] = [gap.mean - half, gap.mean + half], clear = gap.half !== null && (low > 0 || high < 0);
  const arrow = (end, to) => (Math.abs(end) > reach * 1.03 ? [["path", { class: "end", d: `M${to},5 l${Math.sign(end) * 5},4 l${-Math.sign(end) * 5},4 z` }]] : []);
  return little(120, 18, `difference ${gap.text}${gap.half === null ? ", one seed" : ""}`, [
    ["line", { class: "axis", x1: 60, x2: 60, y1: 1, y2: 17 }],
    ...(gap.half === null ? [] : [["line", { class: clear ? "span clear" : "span", x1: x(low), x2: x(high), y1: 9, y2: 9 }]]),
    ["circle", { class: clear ? "mean clear" : "mean", cx: x(gap.mean), cy: 9, r: 4 }],
    ...arrow(low, 4), ...arrow(high, 116),
  ]);
}

// So far bars reach: all of the usual intervals; one that is far wider than the others is cut off.
function reachOf(rows) {
  const ends = rows.filter((row) => row.gap).map((row) => Math.abs(row.gap.mean) + (row.gap.half ?? 0)).sort((a, b) => a - b);
  return ends.length ? Math.min(ends.at(-1), 2.5 * ends[ends.length >> 1]) || 1 : 1;
}

// A table of rows {name, ours, seeds, gap, cost, paper, verdict, mark}; columns that nobody fills are left out.
function resultTable(caption, rows, reach, heads = {}) {
  const domain = roomy(extent(usual(rows.flatMap((row) => Object.values(row.seeds || {})))), false, 0.02);
  const columns = [
    ["ours", heads.ours || "ours ± 95 %", (row) => [row.ours, row.mark]],
    ["strip", "by seed", (row) => (Object.keys(row.seeds || {}).length ? [strip(row.seeds, domain)] : [])],
    ["gap", heads.gap || "difference", (row) => (row.gap ? [el("span", { class: "unbroken" }, row.gap.text)] : row.reference ? ["reference"] : row.difference ? [row.difference] : [])],
    ["bar", `−${show(Number(reach.toPrecision(2)))} to +${show(Number(reach.toPrecision(2)))}`, (row) => (row.gap ? [gapBar(row.gap, reach)] : [])],
    ["paper", "paper", (row) => (row.paper ? [row.paper] : [])],
    ["verdict", "verdict", (row) => (row.verdict ? [chip(row.verdict)] : [])],
    ["cost", heads.cost, (row) => (row.cost && heads.cost ? [row.cost] : [])],
  ].filter(([, , fill]) => rows.some((row) => fill(row).some((piece) => piece !== null && piece !== undefined && piece !== "")));
  const swatch = (row) => {
    const pair = DATA.styles[row.arm ?? row.name] || DATA.hues[row.optimizer];
    if (!pair) return null;
    const node = el("i", { class: "swatch" });
    node.style.setProperty("--light", pair[0]);
    node.style.setProperty("--dark", pair[1]);
    return node;
  };
  return el("table", { class: "results" }, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, el("td"), ...columns.map(([key, head]) => el("th", { scope: "col", class: key }, head)))),
    el("tbody", {}, ...rows.map((row) => el("tr", { class: row.control ? "control" : null },
      el("th", { scope: "row", dir: "auto", title: row.note || null }, swatch(row), row.name),
      ...columns.map(([key, head, fill]) => el("td", { class: key, "data-head": key === "gap" && row.gap ? head : null, "data-unit": key === "cost" && row.passes ? " passes" : null, "data-verdict": key === "verdict" ? row.verdict : null }, ...fill(row)))))));
}

// Every setting that was run: its arms against SGD, or against what a question compares with.
function comparisonView(settings, versus = "SGD") {
  const reach = reachOf(settings.flatMap((setting) => setting.rows));
  const cost = (row) => `${duration(row.seconds)}${row.passes === null ? "" : `, × ${row.passes.toFixed(2)}`}`;
  const block = (setting) => el("div", { class: "block" }, el("h4", { dir: "auto" }, setting.name, el("span", { class: "on" }, setting.on)),
    el("div", { class: "scroll" }, resultTable(setting.name, setting.rows.map((row) => ({ ...row, cost: cost(row), reference: row.name === setting.reference })), reach,
      { ours: "accuracy, % ± 95 %", gap: `against ${versus}`, cost: setting.time + (setting.rows.some((row) => row.passes !== null) ? ", × passes" : "") })));
  const compared = settings.filter((setting) => setting.rows.some((row) => row.gap)), shown = compared.length ? compared : settings;
  const node = el("div", {}, ...shown.slice(0, 6).map(block)), rest = settings.filter((setting) => !shown.includes(setting));
  for (const [some, words] of [[shown.slice(6), "more"], [rest, "without a pair to compare"]]) {
    const noun = some.length === 1 ? "setting" : "settings", told = words === "more" ? `more ${noun}` : `${noun} ${words}`;
    if (some.length) node.append(el("details", { class: "rest" }, el("summary", {}, `${some.length} ${told}`), ...some.map(block)));
  }
  return {
    node, compared: compared.length > 0,
    rows: () => [["setting", "arm", "sparsity", "accuracy", "difference", "half width", "seconds", "passes as ratio", "by seed"],
      ...settings.flatMap((setting) => setting.rows.map((row) => [setting.name, row.name, row.sparsity, row.ours, row.gap?.mean, row.gap?.half, row.seconds, row.passes,
        Object.values(row.seeds).map((v) => v.toFixed(4)).join(" ")]))],
  };
}

// A table of the paper: what was run, column by column; the rest is folded.
function tableView(table) {
  const letters = new Map(); // a note of a cell is a footnote; the same note has the same letter
  const marked = (cell) => {
    if (!cell.note) return null;
    if (!letters.has(cell.note)) letters.set(cell.note, letter(letters.size));
    return el("sup", { title: cell.note }, letters.get(cell.note));
  };
  const column = (j, keep) => table.rows.flatMap((row) => (row.cells[j] && keep(row.cells[j], row)
    ? [{ ...row.cells[j], name: row.name, control: row.control, note: row.cells[j].cost, mark: marked(row.cells[j]) }] : []));
  const blocks = (keep) => table.columns.flatMap((name, j) => {
    const rows = column(j, keep);
    return rows.length ? [el("div", { class: "block" }, table.columns.length > 1 ? el("h4", { dir: "auto" }, name) : null,
      el("div", { class: "scroll" }, resultTable(`${table.title}: ${name}`, rows, reachOf(rows))))] : [];
  });
  const folds = [
    ["row of our own, with the same measure", "rows of our own, with the same measure", (cell, row) => wasRun(cell) && row.control],
    ["printed cell that was not run here", "printed cells that were not run here", (cell) => !wasRun(cell) && cell.paper !== ""],
  ];
  const node = el("div", {}, ...blocks((cell, row) => wasRun(cell) && !row.control));
  for (const [one, several, keep] of folds) {
    const count = table.rows.flatMap((row) => row.cells.filter((cell) => cell && keep(cell, row))).length;
    if (count) node.append(el("details", { class: "rest" }, el("summary", {}, `${count} ${count === 1 ? one : several}`), ...blocks(keep)));
  }
  return {
    node, letters,
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
