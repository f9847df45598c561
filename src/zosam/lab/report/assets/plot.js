// What lines and bars share: the frame with its value axis, and the legend that hides and shows series.
const LEGEND_ROW = 20;

function valueAxis(pen, area, domain, log, label, look) {
  const place = scale(domain, [area.bottom, area.top], log);
  for (const tick of ticks(domain, (area.bottom - area.top) / 52, log)) {
    const y = Math.round(place(tick.at)) + 0.5;
    pen.line([[area.left, y], [area.right, y]], look.grid);
    pen.text(area.left - 8, y + 4, tick.text, { anchor: "end", fill: look.soft });
  }
  pen.text(0, area.top - 12, clip(label, area.right), { fill: look.ink });
  return place;
}

const axisWidth = (domain, height, log) =>
  12 + Math.max(...ticks(domain, height / 52, log).map((tick) => textWidth(tick.text)), 8);

function baseline(pen, area, look) {
  pen.line([[area.left, area.bottom + 0.5], [area.right, area.bottom + 0.5]], look.soft);
}

// Rows of entries from left to right, as many as fit.
function flow(names, width) {
  const entries = [];
  let x = 0, row = 0;
  for (const name of names) {
    const text = clip(name, Math.min(width - 30, 260));
    const wide = textWidth(text) + 46;
    if (x && x + wide > width) [x, row] = [0, row + 1];
    entries.push({ text, x, y: 12 + row * LEGEND_ROW });
    x += wide;
  }
  return { entries, height: names.length ? (row + 1) * LEGEND_ROW + 8 : 0 };
}

// Each entry is a button: click, Enter or Space hides its series and shows it again.
function legend(root, entries, names, sample, stage, hidden, look) {
  entries.forEach((entry, i) => {
    const toggle = () => {
      if (!hidden.delete(i)) hidden.add(i);
      stage.redraw();
      stage.box.querySelector(`[data-series="${i}"]`)?.focus();
    };
    const keys = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle();
    };
    const group = svg("g", {
      class: "legend", "data-series": i, role: "button", tabindex: 0, "aria-pressed": String(!hidden.has(i)),
      "aria-label": names[i], opacity: hidden.has(i) ? 0.35 : 1, onclick: toggle, onkeydown: keys,
    }, svg("title", {}, names[i]));
    const pen = svgPen(group);
    pen.rect(entry.x - 4, entry.y - 14, textWidth(entry.text) + 34, LEGEND_ROW, "transparent");
    sample(pen, i, entry.x, entry.y - 4);
    pen.text(entry.x + 26, entry.y, entry.text, { fill: look.ink });
    root.append(group);
  });
}

// Names over columns: level where they fit, else slanted.
function headSpace(names, cell) {
  const widest = Math.min(120, Math.max(0, ...names.map((name) => textWidth(name, 11))));
  const turned = widest > cell - 4;
  return { cell, turned, slant: turned ? Math.max(0, widest * 0.71 - cell / 2 + 8) : 0, height: turned ? widest * 0.71 + 18 : 20 };
}

function columnHeads(pen, names, middle, bottom, { turned, cell }, look) {
  names.forEach((name, j) => {
    const place = turned ? { anchor: "start", turn: -45 } : { anchor: "middle" };
    pen.text(middle(j) + (turned ? 4 : 0), bottom - 7, clip(name, turned ? 120 : cell, 11), { size: 11, fill: look.soft, ...place })
      .append(svg("title", {}, name));
  });
}

// A second sign beside the colour: every series has a shape of its own.
function marker(pen, i, x, y, colour, size = 3.2) {
  const s = size * 1.15;
  const shapes = [
    [[x - s, y], [x, y - s], [x + s, y], [x, y + s]],
    [[x - size, y - size], [x + size, y - size], [x + size, y + size], [x - size, y + size]],
    [[x - s, y + size], [x, y - s], [x + s, y + size]],
    [[x - s, y - size], [x, y + s], [x + s, y - size]],
  ];
  const shape = i % 5;
  if (shape) return pen.polygon(shapes[shape - 1], colour);
  const round = Array.from({ length: 16 }, (_, k) => [x + size * Math.cos((k * Math.PI) / 8), y + size * Math.sin((k * Math.PI) / 8)]);
  return pen.polygon(round, colour);
}
