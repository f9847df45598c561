// Heat maps: all panels on one colour scale, side by side as far as they fit.
KINDS.heat = (figure, stage) => {
  const key = colours(figure.panels.flatMap((panel) => panel.values.flat()));
  const words = evenly(figure.panels.flatMap((panel) => panel.values.flat()));
  let only = null;
  if (figure.panels.length > 1) {
    stage.tools.append(chooser("panel", ["all", ...figure.panels.map((panel) => panel.name)], (i) => {
      only = i ? i - 1 : null;
      stage.redraw();
    }));
  }

  function draw(width) {
    const look = theme();
    const panels = only === null ? figure.panels : [figure.panels[only]];
    const side = Math.min(width * 0.34, 170, Math.max(20, ...figure.rows.map((name) => textWidth(name)))) + 10;
    const count = Math.max(1, figure.columns.length);
    const across = Math.max(1, Math.min(panels.length, Math.floor((width - side) / Math.max(count * 30 + 16, 120))));
    const cell = Math.max(13, Math.min(64, Math.floor((width - side - 16 * (across - 1)) / across / count)));
    const tall = Math.max(18, Math.min(cell, 34));
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
        if (p % across === 0) pen.text(side - 10, y + (i + 0.5) * tall + 4, clip(name, side - 10), { anchor: "end", fill: look.ink });
        panel.values[i].forEach((value, j) => root.append(square(panel, i, j, left + j * cell, y + i * tall, cell, tall, look)));
      });
    });
    const label = clip(figure.value, width * 0.4), x = Math.max(side, textWidth(label) + 12);
    colourBar(svgPen(root), { x, y: down * block.height + 8, width: Math.min(260, full - x - 20), label, look, ...key });
    return root;
  }

  function square(panel, i, j, x, y, wide, tall, look) {
    const value = panel.values[i][j], channels = value === null ? null : key.of(value);
    const text = `${apart(panel.name)} · ${apart(figure.rows[i])} · ${apart(figure.columns[j])}: ${show(value)}`;
    const group = svg("g", {
      "data-cell": `${i},${j}`, onpointermove: (event) => tip.show(event, [{ colour: channels && paint(channels), text }]),
      onpointerleave: () => tip.hide(),
    }, svg("title", {}, text));
    const pen = svgPen(group), label = words(value);
    pen.rect(x, y, wide - 1, tall - 1, channels ? paint(channels) : look.empty);
    if (textWidth(label, 11) < wide - 4) {
      const ink = channels ? (isDark(channels) ? "#ffffff" : "#1a1a1a") : look.soft;
      pen.text(x + wide / 2 - 0.5, y + tall / 2 + 3.5, label, { size: 11, anchor: "middle", fill: ink });
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
