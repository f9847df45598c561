// Heat maps: all panels on one colour scale, one at a time or side by side; as values, or as differences to a column.
KINDS.heat = (figure, stage) => {
  const only = { panel: figure.panels.length > 3 ? 0 : null }, base = figure.reference;
  let relative = false;
  if (figure.panels.length > 1) {
    stage.tools.append(chooser("show", [...figure.panels.map((panel) => panel.name), "all"], (i) => {
      only.panel = i < figure.panels.length ? i : null;
      stage.redraw();
    }, only.panel ?? figure.panels.length));
  }
  if (Number.isInteger(base)) {
    const tick = el("input", { type: "checkbox", onchange: () => { relative = tick.checked; stage.redraw(); } });
    stage.tools.append(el("label", { class: "tool" }, tick, ` as difference to ${figure.columns[base]}`));
  }
  const at = (panel, i, j) => {
    const value = panel.values[i][j];
    if (!relative || value === null) return value;
    return j === base || panel.values[i][base] === null ? null : value - panel.values[i][base];
  };
  const all = () => figure.panels.flatMap((panel) => panel.values.flatMap((line, i) => line.map((_, j) => at(panel, i, j))));

  function draw(width) {
    const look = theme(), key = colours(all()), words = relative ? signed : evenly(all());
    const panels = only.panel === null ? figure.panels : [figure.panels[only.panel]];
    const side = Math.min(width * 0.34, 180, Math.max(20, ...figure.rows.map((name) => textWidth(name)))) + 10;
    const count = Math.max(1, figure.columns.length);
    const across = Math.max(1, Math.min(panels.length, Math.floor((width - side) / Math.max(count * 44 + 16, 120))));
    const fitting = (free) => Math.max(13, Math.min(84, Math.floor((free - side - 16 * (across - 1)) / across / count - (width < 500 ? 3 : 6))));
    const cell = fitting(width - headSpace(figure.columns, fitting(width)).slant); // the last name stays inside
    const tall = Math.max(20, Math.min(cell, 26));
    const space = headSpace(figure.columns, cell), head = 26 + space.height;
    const block = { width: cell * count + 16, height: head + tall * figure.rows.length + 22 };
    const down = Math.ceil(panels.length / across);
    const full = Math.max(Math.min(width, Math.max(420, side + across * block.width + space.slant)), side + cell * count + space.slant);
    const root = sheet(full, down * block.height + 46, figure.title);
    panels.forEach((panel, p) => {
      const left = side + (p % across) * block.width, y = Math.floor(p / across) * block.height + head;
      const pen = svgPen(root);
      pen.text(left, y - head + 16, clip(panel.name, block.width - 8, 13, 600), { size: 13, weight: 600, fill: look.ink })
        .append(svg("title", {}, panel.name));
      columnHeads(pen, figure.columns, (j) => left + (j + 0.5) * cell, y, space, look);
      figure.rows.forEach((name, i) => {
        if (p % across === 0) pen.text(side - 10, y + (i + 0.5) * tall + 4, clip(name, side - 10), { anchor: "end", fill: look.ink }).append(svg("title", {}, name));
        panel.values[i].forEach((_, j) => root.append(square(panel, i, j, { x: left + j * cell, y: y + i * tall, cell, tall, look, key, words })));
      });
    });
    const label = clip(relative ? "difference, points" : figure.value, width * 0.4), x = Math.max(side, textWidth(label) + 12);
    colourBar(svgPen(root), { x, y: down * block.height + 8, width: Math.min(260, Math.min(full, width) - x - 20), label, look, ...key });
    return root;
  }

  const signed = (value) => (value === null ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`);

  function square(panel, i, j, { x, y, cell, tall, look, key, words }) {
    const value = at(panel, i, j), channels = value === null ? null : key.of(value);
    const text = `${apart(panel.name)} · ${apart(figure.rows[i])} · ${apart(figure.columns[j])}: ${show(value)}`;
    const group = svg("g", {
      "data-cell": `${i},${j}`, onpointermove: (event) => tip.show(event, [{ colour: channels && paint(channels), text }]),
      onpointerleave: () => tip.hide(),
    }, svg("title", {}, text));
    const pen = svgPen(group), exact = words(value), short = value === null ? exact : value.toFixed(0).replace("-", "−");
    pen.rect(x, y, cell - 1, tall - 1, channels ? paint(channels) : look.empty);
    const label = [exact, relative ? exact : short].find((word) => textWidth(word, 11) < cell - 3);
    if (label) {
      const ink = channels ? (isDark(channels) ? "#ffffff" : "#1a1a1a") : look.soft;
      pen.text(x + cell / 2 - 0.5, y + tall / 2 + 3.5, label, { size: 11, anchor: "middle", fill: ink });
    }
    return group;
  }

  function rows() {
    const table = [["panel", "row", "column", figure.value]];
    for (const panel of figure.panels) {
      panel.values.forEach((line, i) => line.forEach((v, j) => table.push([panel.name, figure.rows[i], figure.columns[j], v])));
    }
    return table;
  }
  return { draw, rows };
};
