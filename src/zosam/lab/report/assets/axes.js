// What charts share: a frame with two axes, marks, and a legend that hides and shows.
const LEGEND_ROW = 22;

const isTime = (key) => key.endsWith("seconds");

// Seconds are shown in the unit that suits the longest; everything else as it is.
function unit(key, label, values) {
  if (!isTime(key)) return { label, per: 1, tell: (v) => `${show(v)} ${key}` };
  const [, high] = extent(values);
  const [per, word] = high > 5400 ? [3600, "hours"] : high > 150 ? [60, "minutes"] : [1, "seconds"];
  return { label: `${label}, ${word}`, per, tell: duration };
}

// The two axes of a chart; gives the places of values.
function frame(pen, area, axes, look) {
  const x = scale(axes.x.domain, [area.left, area.right], axes.x.log), y = scale(axes.y.domain, [area.bottom, area.top], axes.y.log);
  for (const tick of ticks(axes.y.domain, (area.bottom - area.top) / 48, axes.y.log)) {
    const at = Math.round(y(tick.at)) + 0.5;
    pen.line([[area.left, at], [area.right, at]], look.grid);
    pen.text(area.left - 8, at + 4, tick.text, { anchor: "end", fill: look.soft });
  }
  pen.text(area.left - axisWidth(axes.y, area) + 4, area.top - 12, clip(axes.y.label, area.right - area.left + 40), { fill: look.ink });
  pen.line([[area.left, area.bottom + 0.5], [area.right, area.bottom + 0.5]], look.soft);
  for (const tick of ticks(axes.x.domain, (area.right - area.left) / 80, axes.x.log, axes.x.whole)) {
    pen.line([[x(tick.at), area.bottom + 0.5], [x(tick.at), area.bottom + 5]], look.soft);
    pen.text(x(tick.at), area.bottom + 18, tick.text, { anchor: "middle", fill: look.soft });
  }
  pen.text((area.left + area.right) / 2, area.bottom + 37, clip(axes.x.label, area.right - area.left + 20), { anchor: "middle", fill: look.ink });
  return { x, y };
}

const axisWidth = (axis, area) =>
  12 + Math.max(...ticks(axis.domain, (area.bottom - area.top) / 48, axis.log).map((tick) => textWidth(tick.text)), 8);

// Rows of entries from left to right, as many as fit: {text, sample(pen, x, y), hidden, toggle, key}.
function flow(entries, width) {
  let x = 0, row = 0;
  const placed = entries.map((entry) => {
    const text = clip(entry.text, Math.min(width - 46, 330)), wide = textWidth(text) + 46;
    if (x && x + wide > width) [x, row] = [0, row + 1];
    const place = { ...entry, clipped: text, x, y: 14 + row * LEGEND_ROW };
    x += wide;
    return place;
  });
  return { placed, height: entries.length ? (row + 1) * LEGEND_ROW + 8 : 0 };
}

// Each entry is a button: click, Enter or Space hides what it names and shows it again.
function legend(root, placed, stage, look, down = 0) {
  for (const entry of placed) {
    const toggle = () => {
      entry.toggle();
      stage.redraw();
      stage.box.querySelector(`[data-series="${CSS.escape(entry.key)}"]`)?.focus();
    };
    const keys = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
    };
    const group = svg("g", {
      class: "legend", "data-series": entry.key, role: "button", tabindex: 0, "aria-pressed": String(!entry.hidden),
      "aria-label": entry.text, opacity: entry.hidden ? 0.35 : 1, onclick: toggle, onkeydown: keys,
    }, svg("title", {}, entry.text));
    const pen = svgPen(group), y = entry.y + down;
    pen.rect(entry.x - 4, y - 15, textWidth(entry.clipped) + 36, LEGEND_ROW, "transparent");
    entry.sample(pen, entry.x, y - 4);
    pen.text(entry.x + 27, y, entry.clipped, { fill: look.ink });
    root.append(group);
  }
}

// Entries that hide by key, kept in a set.
const switches = (hidden) => (key, text, sample) => ({
  key, text, sample, hidden: hidden.has(key), toggle: () => { if (!hidden.delete(key)) hidden.add(key); },
});

// A mark has one shape for each sparsity: round, diamond, square, triangle up and down.
function marker(pen, i, x, y, colour, size = 3.2, hollow = null) {
  const s = size * 1.2, d = size * 1.3;
  const shapes = [
    Array.from({ length: 16 }, (_, k) => [x + size * Math.cos((k * Math.PI) / 8), y + size * Math.sin((k * Math.PI) / 8)]),
    [[x - d, y], [x, y - d], [x + d, y], [x, y + d]],
    [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]],
    [[x - s, y + size], [x, y - s], [x + s, y + size]],
    [[x - s, y - size], [x, y + s], [x + s, y - size]],
  ];
  return pen.polygon(shapes[i % 5], hollow || colour, colour, hollow ? 1.4 : 0.5);
}

// Names over columns: level where they fit, else slanted.
function headSpace(names, cell) {
  const widest = Math.min(130, Math.max(0, ...names.map((name) => textWidth(name, 11))));
  const turned = widest > cell - 4;
  return { cell, turned, slant: turned ? Math.max(0, widest * 0.71 - cell / 2 + 8) : 0, height: turned ? widest * 0.71 + 18 : 20 };
}

function columnHeads(pen, names, middle, bottom, { turned, cell }, look) {
  names.forEach((name, j) => {
    const place = turned ? { anchor: "start", turn: -45 } : { anchor: "middle" };
    pen.text(middle(j) + (turned ? 4 : 0), bottom - 7, clip(name, turned ? 130 : cell, 11), { size: 11, fill: look.soft, ...place })
      .append(svg("title", {}, name));
  });
}
