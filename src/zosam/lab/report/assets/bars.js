// Bars that lie: a row for each group and series, from zero, or near the values where differences are small.
KINDS.bars = (figure, stage) => {
  const words = evenly(figure.series.flatMap((series) => series.values));
  const all = figure.series.flatMap((s) => s.values.flatMap((v, k) => (v === null ? [] : [v - (s.errors?.[k] || 0), v + (s.errors?.[k] || 0)])));
  const [least, most] = extent(all);
  let close = least > 0 && (most - least) < 0.25 * most; // all bars would look alike
  const tick = el("input", { type: "checkbox", onchange: () => { close = tick.checked; stage.redraw(); } });
  tick.checked = close;
  stage.tools.append(el("label", { class: "tool" }, tick, " zoom in (points instead of bars)"));

  function draw(width) {
    const look = theme(), many = figure.series.length > 1, row = 22, group = figure.series.length * row + (many ? 30 : 6);
    const names = many ? figure.series.map((s) => s.name) : figure.groups;
    const left = Math.min(width * 0.36, Math.max(30, ...names.map((name) => textWidth(name)))) + 14;
    const numbers = 12 + Math.max(20, ...figure.series.flatMap((s) => s.values.map((v) => textWidth(words(v), 11))));
    const domain = close ? roomy([least, most], false, 0.08) : [Math.min(0, least), Math.max(0, most) || 1];
    const area = { left, right: width - numbers, top: 8, bottom: 8 + figure.groups.length * group };
    const root = sheet(width, area.bottom + 44, figure.title), pen = svgPen(root), x = scale(domain, [area.left, area.right]);
    for (const stop of ticks(domain, (area.right - area.left) / 80)) {
      pen.line([[x(stop.at), area.top], [x(stop.at), area.bottom]], look.grid);
      pen.text(x(stop.at), area.bottom + 16, stop.text, { anchor: "middle", fill: look.soft });
    }
    pen.text((area.left + area.right) / 2, area.bottom + 36, clip(figure.y, width), { anchor: "middle", fill: look.ink });
    figure.groups.forEach((name, g) => {
      const y = area.top + g * group;
      if (many) pen.text(0, y + 18, clip(name, width), { weight: 600, fill: look.ink });
      figure.series.forEach((series, i) => mark(root, series, i, g, y + (many ? 26 : 3) + i * row, { x, look, row, left, many }));
    });
    return root;
  }

  function mark(root, series, i, g, y, { x, look, row, left, many }) {
    const value = series.values[g], error = series.errors?.[g], own = many ? series : { name: figure.groups[g] };
    const colour = DATA.styles[own.name] || many ? look.of(own, i) : look.series(0), middle = y + row / 2 - 2;
    const text = `${apart(figure.groups[g])}, ${apart(series.name)}: ${show(value)}${error ? ` ± ${show(error)}` : ""}`;
    const group = svg("g", {
      "data-bar": i, onpointermove: (event) => tip.show(event, [{ colour, text }]), onpointerleave: () => tip.hide(),
    }, svg("title", {}, text));
    const pen = svgPen(group);
    pen.text(left - 10, middle + 4, clip(own.name, left - 10), { anchor: "end", fill: look.ink });
    root.append(group);
    if (value === null) return;
    if (!close) pen.rect(Math.min(x(0), x(value)), y, Math.max(0.5, Math.abs(x(value) - x(0))), row - 5, colour);
    if (error) pen.line([[x(value - error), middle], [x(value + error), middle]], look.ink, 1.5);
    if (close) marker(pen, 0, x(value), middle, colour, 5);
    pen.text(x(Math.max(value + (error || 0), close ? value : 0)) + 8, middle + 4, words(value), { size: 11, fill: look.soft });
  }

  function rows() {
    const table = [["group", "series", figure.y, "error"]];
    figure.groups.forEach((group, k) => figure.series.forEach((s) => table.push([group, s.name, s.values[k], s.errors?.[k]])));
    return table;
  }
  return { draw, rows };
};
