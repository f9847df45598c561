// Lines, with a band where low and high are given; the pointer or the arrow keys read values off.
KINDS.lines = (figure, stage) => {
  const hidden = new Set();
  const log = figure.log_y;
  const names = figure.series.map((series) => series.name);
  const visible = () => figure.series.map((series, i) => ({ ...series, i })).filter(({ i }) => !hidden.has(i));
  const lost = log ? figure.series.flatMap((s) => s.y).filter((v) => v !== null && v <= 0).length : 0;

  // A gap in the values is a gap in the line.
  function pieces(series, ...keys) {
    const found = [[]];
    series.x.forEach((x, k) => {
      if (keys.every((key) => drawable(series[key][k], log))) found.at(-1).push(k);
      else if (found.at(-1).length) found.push([]);
    });
    return found.filter((piece) => piece.length);
  }

  function draw(width) {
    const look = theme();
    const some = visible().length ? visible() : figure.series;
    const domain = roomy(extent(some.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]), log), log);
    const xDomain = roomy(extent(figure.series.flatMap((s) => s.x)), false, 0.015);
    const beside = width >= 620 && names.length <= 9;
    const top = beside ? { entries: [], height: 0 } : flow(names, width);
    const tall = Math.round(Math.max(230, Math.min(380, width * 0.52)));
    const room = beside ? Math.min(190, Math.max(0, ...names.map((n) => textWidth(n)))) + 44 : 12;
    const area = { left: axisWidth(domain, tall, log), top: top.height + 26, right: width - room, bottom: top.height + 26 + tall };
    const root = sheet(width, area.bottom + 44, figure.title);
    const pen = svgPen(root);
    const y = valueAxis(pen, area, domain, log, apart(figure.y) + (lost ? ` (log; ${lost} values not above 0 are left out)` : ""), look);
    const x = scale(xDomain, [area.left, area.right]);
    baseline(pen, area, look);
    for (const tick of ticks(xDomain, (area.right - area.left) / 80)) {
      pen.line([[x(tick.at), area.bottom + 0.5], [x(tick.at), area.bottom + 5]], look.soft);
      pen.text(x(tick.at), area.bottom + 18, tick.text, { anchor: "middle", fill: look.soft });
    }
    pen.text((area.left + area.right) / 2, area.bottom + 37, clip(figure.x, area.right - area.left), { anchor: "middle", fill: look.ink });
    for (const series of visible()) line(root, series, x, y, look);
    const sample = (own, i, sx, sy) => {
      own.line([[sx, sy], [sx + 20, sy]], look.series(i), 2, figure.series[i].dashed ? "5 3" : null);
      marker(own, i, sx + 10, sy, look.series(i));
    };
    legend(root, beside ? ends(area, y) : top.entries, names, sample, stage, hidden, look);
    root.append(reader(area, x, y, look));
    return root;
  }

  function line(root, series, x, y, look) {
    const group = svg("g", { "data-line": series.i });
    const pen = svgPen(group), colour = look.series(series.i);
    if (series.low && series.high) {
      for (const piece of pieces(series, "low", "high")) {
        const edge = (key) => piece.map((k) => [x(series.x[k]), y(series[key][k])]);
        pen.polygon([...edge("high"), ...edge("low").reverse()], colour).setAttribute("opacity", 0.16);
      }
    }
    for (const piece of pieces(series, "y")) {
      const points = piece.map((k) => [x(series.x[k]), y(series.y[k])]);
      pen.line(points, colour, 2, series.dashed ? "6 4" : null);
      if (series.x.length <= 30 || points.length === 1) points.forEach(([px, py]) => marker(pen, series.i, px, py, colour));
    }
    root.append(group);
  }

  // Names stand at the ends of their lines, moved apart where they would touch.
  function ends(area, y) {
    const inside = (v) => Math.min(area.bottom - 2, Math.max(area.top + 4, v));
    const entries = figure.series.map((series) => {
      const last = series.y.filter((v) => drawable(v, log)).at(-1);
      return { text: clip(series.name, 190), x: area.right + 14, y: (last === undefined ? area.bottom : inside(y(last))) + 4 };
    });
    const sorted = [...entries].sort((a, b) => a.y - b.y);
    for (let k = 1; k < sorted.length; k++) sorted[k].y = Math.max(sorted[k].y, sorted[k - 1].y + 18);
    const over = Math.max(0, (sorted.at(-1)?.y || 0) - area.bottom - 4);
    for (let k = sorted.length - 1, limit = Infinity; over && k >= 0; k--) {
      sorted[k].y = Math.min(sorted[k].y, k === sorted.length - 1 ? area.bottom + 4 : limit - 18);
      limit = sorted[k].y;
    }
    return entries;
  }

  function reader(area, x, y, look) {
    const stops = [...new Set(visible().flatMap((series) => series.x))].sort((a, b) => a - b);
    const marks = svg("g", { "pointer-events": "none" });
    let now = -1;
    const read = (k, event) => {
      now = k;
      const at = stops[k], pen = svgPen(marks);
      marks.replaceChildren();
      pen.line([[x(at), area.top], [x(at), area.bottom]], look.soft, 1, "2 3");
      const lines = [{ text: `${apart(figure.x)}: ${show(at)}` }];
      for (const series of visible()) {
        const place = series.x.indexOf(at), value = series.y[place];
        if (place < 0 || value === null) continue;
        const band = series.low && series.high ? ` (${show(series.low[place])} to ${show(series.high[place])})` : "";
        lines.push({ colour: look.series(series.i), text: `${apart(series.name)}: ${show(value)}${band}` });
        if (drawable(value, log)) marker(pen, series.i, x(at), y(value), look.series(series.i), 4.5);
      }
      tip.show(event, lines);
    };
    const point = (event) => {
      if (!stops.length) return;
      const px = event.clientX - pad.getBoundingClientRect().left + area.left;
      read(stops.reduce((best, at, k) => (Math.abs(x(at) - px) < Math.abs(x(stops[best]) - px) ? k : best), 0), event);
    };
    const keys = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !stops.length) return;
      event.preventDefault();
      const next = Math.min(stops.length - 1, Math.max(0, now + step));
      const box = pad.getBoundingClientRect();
      read(next, { clientX: box.left + x(stops[next]) - area.left, clientY: box.top + 20 });
    };
    const clear = () => {
      marks.replaceChildren();
      tip.hide();
    };
    const pad = svg("rect", {
      class: "pad", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, fill: "transparent",
      tabindex: 0, role: "img", "aria-label": `${figure.title}: left and right arrow keys read the values`,
      onpointermove: point, onpointerdown: point, onpointerleave: clear, onblur: clear, onkeydown: keys,
    });
    return svg("g", {}, pad, marks);
  }

  function rows() {
    const table = [["series", figure.x, figure.y, "low", "high"]];
    for (const s of figure.series) s.x.forEach((x, k) => table.push([s.name, x, s.y[k], s.low?.[k], s.high?.[k]]));
    return table;
  }
  return { draw, rows };
};
