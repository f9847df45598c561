// Bars from zero; or, where the differences are small, points on an axis that starts near them.
KINDS.bars = (figure, stage) => {
  const hidden = new Set();
  const names = figure.series.map((series) => series.name);
  const words = evenly(figure.series.flatMap((series) => series.values));
  let close = false;
  const tick = el("input", { type: "checkbox", onchange: () => { close = tick.checked; stage.redraw(); } });
  stage.tools.append(el("label", { class: "tool" }, tick, " zoom in (points instead of bars)"));

  const reach = (series, k) => [series.values[k] - (series.errors?.[k] || 0), series.values[k] + (series.errors?.[k] || 0)];

  function draw(width) {
    const look = theme();
    const shown = figure.series.map((series, i) => ({ ...series, i })).filter(({ i }) => !hidden.has(i));
    const values = (shown.length ? shown : figure.series).flatMap((s) => s.values.flatMap((v, k) => (v === null ? [] : reach(s, k))));
    const [low, high] = extent(close ? values : [...values, 0]);
    const air = roomy([low, high], false, 0.07);
    const domain = close ? air : [low < 0 ? air[0] : 0, high > 0 ? air[1] : 0];
    const top = flow(names, width);
    const tall = Math.round(Math.max(210, Math.min(330, width * 0.42)));
    const area = { left: axisWidth(domain, tall), top: top.height + 26, right: width - 4 };
    area.bottom = area.top + tall;
    const room = (area.right - area.left) / Math.max(1, figure.groups.length);
    const widest = Math.max(0, ...figure.groups.map((g) => textWidth(g)));
    const turned = widest > room - 8;
    const foot = turned ? Math.min(110, widest * 0.71 + 26) : 30;
    const root = sheet(width, area.bottom + foot, figure.title);
    const pen = svgPen(root);
    const y = valueAxis(pen, area, domain, false, figure.y, look);
    figure.groups.forEach((group, k) => {
      const middle = area.left + (k + 0.5) * room;
      const text = clip(group, turned ? 120 : room);
      pen.text(middle + (turned ? 4 : 0), area.bottom + 18, text, { fill: look.ink, anchor: turned ? "end" : "middle", turn: turned ? -45 : 0 });
      shown.forEach((series, slot) => mark(root, series, k, middle, slot, { room, y, look, count: shown.length }));
    });
    const zero = close ? area.bottom : y(0);
    pen.line([[area.left, zero + 0.5], [area.right, zero + 0.5]], look.soft);
    const sample = (own, i, x, sy) => own.polygon([[x + 6, sy - 6], [x + 18, sy - 6], [x + 18, sy + 6], [x + 6, sy + 6]], look.series(i));
    legend(root, top.entries, names, sample, stage, hidden, look);
    return root;
  }

  function mark(root, series, k, middle, slot, { room, y, look, count }) {
    const value = series.values[k], error = series.errors?.[k];
    if (value === null) return;
    const wide = Math.min(46, (room * 0.78) / count);
    const x = middle + (slot - (count - 1) / 2) * wide, colour = look.series(series.i);
    const text = `${apart(figure.groups[k])}, ${apart(series.name)}: ${show(value)}${error ? ` ± ${show(error)}` : ""}`;
    const group = svg("g", {
      "data-bar": series.i, onpointermove: (event) => tip.show(event, [{ colour, text }]), onpointerleave: () => tip.hide(),
    }, svg("title", {}, text));
    const pen = svgPen(group);
    if (close) marker(pen, series.i, x, y(value), colour, 4.5);
    else pen.rect(x - wide * 0.44, Math.min(y(value), y(0)), wide * 0.88, Math.max(0.5, Math.abs(y(value) - y(0))), colour);
    if (error) {
      const [from, to] = reach(series, k).map(y), half = Math.min(5, wide * 0.2);
      pen.line([[x, from], [x, to]], look.ink);
      for (const end of [from, to]) pen.line([[x - half, end], [x + half, end]], look.ink);
    }
    const label = words(value), above = y(value + (value < 0 ? -1 : 1) * (error || 0));
    if (textWidth(label, 11) < wide - 2) {
      pen.text(x, value < 0 ? above + 14 : above - (close ? 9 : 5), label, { size: 11, anchor: "middle", fill: look.soft });
    }
    root.append(group);
  }

  function rows() {
    const table = [["group", "series", figure.y, "error"]];
    figure.groups.forEach((group, k) => figure.series.forEach((s) => table.push([group, s.name, s.values[k], s.errors?.[k]])));
    return table;
  }
  return { draw, rows };
};
