// Lines, with a band where low and high are given; a chart for each of two axes, such as epochs beside seconds.
KINDS.lines = (figure, stage) => {
  const off = new Set(), log = figure.log_y;
  const panels = figure.panels || [{ name: "", series: figure.series }];
  const labels = typeof figure.x === "string" ? { "": figure.x } : figure.x, keys = Object.keys(labels);
  const along = (series, key) => (key ? series.x[key] : series.x);
  let panel = panels[0], second = 1, every = false;
  if (panels.length > 1) stage.tools.append(chooser("setting", panels.map((p) => p.name), (i) => { panel = panels[i]; stage.redraw(); }));
  if (keys.length > 2) stage.tools.append(chooser("beside epochs", keys.slice(1).map((k) => labels[k]), (i) => { second = i + 1; stage.redraw(); }));

  // Of an optimizer that was trained in several ways the best is shown; if all are, they share its entry in the legend.
  if (panels.some((p) => p.series.some((s) => s.best === false))) stage.tools.append(chooser("show", ["each optimizer at its best", "every setting of each"], (i) => { every = i === 1; stage.redraw(); }));

  const named = (series) => (every ? series.arm : series.name);
  const drawn = () => panel.series.map((series, i) => ({ ...series, i })).filter((series) => every || series.best !== false);
  const visible = () => drawn().filter((series) => !off.has(named(series)));
  const strong = (series) => !every || series.best !== false;
  const lost = () => (log ? drawn().flatMap((s) => s.y).filter((v) => v !== null && v <= 0).length : 0);

  // A gap in the values is a gap in the line.
  function pieces(series, ...of) {
    const found = [[]];
    series.y.forEach((_, k) => {
      if (of.every((name) => drawable(series[name][k], log))) found.at(-1).push(k);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter((piece) => piece.length);
  }

  function draw(width) {
    const look = theme(), entry = switches(off);
    const once = [...new Map(drawn().map((series) => [named(series), series])).values()];
    const top = flow(once.map((series) => entry(named(series), named(series), (pen, x, y) => {
      pen.line([[x, y], [x + 22, y]], look.of(series, series.i), 2.2, dashOf(series));
      marker(pen, sparsityOf(series), x + 11, y, look.of(series, series.i));
    })), width);
    const shown = keys.length > 1 ? [keys[0], keys[second]] : keys;
    const beside = shown.length > 1 && width >= 660, wide = beside ? width / 2 : width;
    const tall = Math.round(Math.max(220, Math.min(360, wide * 0.62))), block = tall + 76;
    const root = sheet(width, top.height + (beside ? 1 : shown.length) * block, figure.title);
    shown.forEach((key, c) => {
      const left = beside ? c * wide : 0, above = top.height + (beside ? 0 : c * block) + 28;
      chart(root, key, { left, right: left + wide - (beside && !c ? 26 : 10), top: above, bottom: above + tall }, look);
    });
    legend(root, top.placed, stage, look);
    return root;
  }

  function chart(root, key, area, look) {
    const some = visible().length ? visible() : drawn();
    const { per, label, tell } = unit(key, labels[key], some.flatMap((s) => along(s, key)));
    const places = some.flatMap((s) => along(s, key)).map((v) => v / per);
    const axes = {
      x: { domain: roomy(extent(places), false, 0.015), label, whole: places.every(Number.isInteger) },
      y: { domain: upTo(figure.most, roomy(extent(some.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), log), log)), log,
        label: apart(figure.y) + (lost() ? ` (log; ${lost()} values not above 0 are left out)` : "") },
    };
    area.left += axisWidth(axes.y, area);
    const { x, y } = frame(svgPen(root), area, axes, look);
    for (const series of visible()) line(root, series, key, (v) => x(v / per), y, look);
    root.append(reader(area, key, (v) => x(v / per), y, look, isTime(key) ? tell : show));
  }

  function line(root, series, key, x, y, look) {
    const group = svg("g", { "data-line": series.i }), pen = svgPen(group), colour = look.of(series, series.i), at = along(series, key);
    if (!strong(series)) group.setAttribute("opacity", 0.45);
    if (series.low && series.high && strong(series)) {
      for (const piece of pieces(series, "low", "high")) {
        const edge = (name) => piece.map((k) => [x(at[k]), y(series[name][k])]);
        pen.polygon([...edge("high"), ...edge("low").reverse()], colour).setAttribute("opacity", 0.13);
      }
    }
    for (const piece of pieces(series, "y")) {
      const points = piece.map((k) => [x(at[k]), y(series.y[k])]);
      pen.line(points, colour, strong(series) ? 2 : 1.2, dashOf(series));
      if ((strong(series) && at.length <= 30) || points.length === 1) points.forEach(([px, py]) => marker(pen, sparsityOf(series), px, py, colour, 2.8));
    }
    root.append(group);
  }

  // The pointer reads, of every series, the value that is nearest to it along the axis.
  function reader(area, key, x, y, look, tell) {
    const stops = [...new Set(visible().flatMap((series) => along(series, key)))].sort((a, b) => a - b);
    const marks = svg("g", { "pointer-events": "none" });
    let now = -1;
    const nearest = (values, at) => values.reduce((best, v, k) => (Math.abs(v - at) < Math.abs(values[best] - at) ? k : best), 0);
    const read = (k, event) => {
      now = k;
      const at = stops[k], pen = svgPen(marks), lines = [];
      marks.replaceChildren();
      pen.line([[x(at), area.top], [x(at), area.bottom]], look.soft, 1, "2 3");
      for (const series of visible()) {
        const i = nearest(along(series, key), at), value = series.y[i];
        if (value === null || (!key && along(series, key)[i] !== at)) continue;
        const band = series.low && series.high ? ` (${show(series.low[i])} to ${show(series.high[i])})` : "";
        lines.push({ value, colour: look.of(series, series.i), text: `${apart(series.name)}: ${show(value)}${band}` });
        if (drawable(value, log)) marker(pen, sparsityOf(series), x(along(series, key)[i]), y(value), look.of(series, series.i), 4.5);
      }
      tip.show(event, [{ text: `${apart(labels[key])}: ${tell(at)}` }, ...lines.sort((a, b) => b.value - a.value).slice(0, 16)]);
    };
    const point = (event) => {
      if (!stops.length) return;
      const px = event.clientX - pad.getBoundingClientRect().left + area.left;
      read(nearest(stops.map(x), px), event);
    };
    const step = (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !stops.length) return;
      event.preventDefault();
      const next = Math.min(stops.length - 1, Math.max(0, now + move)), box = pad.getBoundingClientRect();
      read(next, { clientX: box.left + x(stops[next]) - area.left, clientY: box.top + 20 });
    };
    const clear = () => { marks.replaceChildren(); tip.hide(); };
    const pad = svg("rect", {
      class: "pad", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, fill: "transparent",
      tabindex: 0, role: "img", "aria-label": `${figure.title}: left and right arrow keys read the values`,
      onpointermove: point, onpointerdown: point, onpointerleave: clear, onblur: clear, onkeydown: step,
    });
    return svg("g", {}, pad, marks);
  }

  function rows() {
    const table = [["panel", "series", ...keys.map((k) => labels[k]), figure.y, "low", "high"]];
    for (const p of panels) for (const s of p.series) {
      s.y.forEach((y, k) => table.push([p.name, s.name, ...keys.map((key) => along(s, key)[k]), y, s.low?.[k], s.high?.[k]]));
    }
    return table;
  }
  return { draw, rows };
};
