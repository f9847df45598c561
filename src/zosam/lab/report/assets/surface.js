// Loss surfaces: the relief of each model beside its map, all on one scale, all seen from one place.
const CAMERA = { yaw: 0.65, pitch: 0.52, zoom: 1, watchers: new Set() }; // shared by every figure of the page
const LEVELS = 10;

KINDS.surface = (figure, stage) => {
  const values = figure.models.flatMap((model) => model.loss.flat()), positive = values.some((v) => v > 0);
  const view = { log: positive, cut: 1 };
  const more = Math.max(1, Math.floor(48 / (Math.max(figure.x.length, figure.y.length) - 1))); // a coarse grid is drawn finer
  const [u, v] = [figure.x, figure.y].map((axis) => Array.from({ length: (axis.length - 1) * more + 1 }, (_, k) => scale([axis[0], axis.at(-1)], [-1, 1])(alongAxis(axis, k / more))));
  const canvas = el("canvas", { tabindex: 0, role: "img" });
  const reading = el("output", { class: "reading" });
  let width = 0, panels = [], due = false, cursor = null;

  function domain() {
    const [low, high] = extent(values, view.log);
    return [low, view.log ? low * (high / low) ** view.cut : low + (high - low) * view.cut];
  }
  // Half of the plane lies below the cut at first, so that the basins fill the scale.
  function basins() {
    const known = values.filter((value) => drawable(value, view.log)).sort((a, b) => a - b), [low, high] = extent(values, view.log);
    if (known.length) view.cut = Math.min(1, Math.max(0.05, scale([low, high], [0, 1], view.log)(known[known.length >> 1])));
    cut.value = view.cut;
  }

  function paintAll() {
    const { height } = layout(), sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    sketch(canvasPen(context));
    reading.textContent = show(domain()[1]);
    canvas.setAttribute("aria-label", `${figure.title}. Loss surfaces of ${figure.models.map((m) => m.name).join(", ")}. `
      + "Arrow keys turn them, plus and minus zoom, 0 goes back.");
  }

  function repaint() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; paintAll(); });
  }

  // A block for each model: relief and map beside each other, on a phone below each other; facts at the foot.
  function layout() {
    const across = Math.max(1, Math.min(figure.models.length, Math.floor(width / 420))), wide = width / across;
    const stacked = wide < 380, size = Math.round(stacked ? wide * 0.56 : Math.min(wide * 0.36, 230));
    const relief = stacked ? { wide, tall: wide * 0.72 } : { wide: wide - size - 26, tall: size + 60 };
    const facts = figure.models.some((m) => factsOf(m).length) ? 40 : 22;
    const tall = 30 + (stacked ? relief.tall + size + 14 : relief.tall) + facts;
    return { across, wide, stacked, size, relief, tall, height: Math.ceil(figure.models.length / across) * tall + 44 };
  }

  function factsOf(model) {
    return [
      ...(Number.isFinite(model.sharpness) ? [`sharpness ${show(model.sharpness)}`] : []),
      ...(model.eigenvalues?.length ? [`λ ${model.eigenvalues.map(show).join(", ")}`] : []),
    ];
  }

  function sketch(pen) {
    const look = theme(), limits = domain(), level = scale(limits, [0, 1], view.log), { across, wide, stacked, size, relief, tall, height } = layout();
    panels = figure.models.map((model, i) => {
      const x = (i % across) * wide, y = Math.floor(i / across) * tall + 30;
      const share = finer(model.loss.map((row) => row.map((l) => (drawable(l, view.log) ? Math.max(0, level(l)) : null))), more);
      const box = { model, share, x, y, ...relief, map: stacked
        ? { x: x + (wide - size) / 2, y: y + relief.tall + 6, size } : { x: x + relief.wide + 4, y: y + 18, size } };
      pen.text(x + 4, y - 10, clip(model.name, wide - 16, 13, 600), { size: 13, weight: 600, fill: look.ink });
      pen.panel(x, y, relief.wide, relief.tall, (own) => landscape(own, box, limits, look));
      contourMap(pen, share, box.map, LEVELS, look);
      foot(pen, box, x + 4, y - 30 + tall - (factsOf(model).length ? 22 : 6), wide, look);
      if (cursor) cross(pen, box.map, look);
      return box;
    });
    const label = clip(`${figure.z}${view.log ? ", log" : ""}`, width * 0.4), long = Math.min(280, width - textWidth(label) - 60);
    colourBar(pen, {
      x: (width - long + textWidth(label)) / 2, y: height - 34, width: long, map: MAPS.sequential, domain: limits, log: view.log, label, look,
    });
  }

  // The loss at the weights, and how much of the plane is below the middle of the scale: the size of the basin.
  function foot(pen, { model }, x, y, wide, look) {
    const [low, high] = domain(), middle = view.log ? Math.sqrt(low * high) : (low + high) / 2, all = model.loss.flat().filter((l) => l !== null);
    const home = between(model.loss, (figure.x.length - 1) / 2, (figure.y.length - 1) / 2);
    const below = all.length ? `; below ${show(Number(middle.toPrecision(2)))} on ${Math.round((100 * all.filter((l) => l < middle).length) / all.length)} % of the plane` : "";
    [`at the weights ${show(home)}${below}`, factsOf(model).join("; ")].forEach((text, k) =>
      pen.text(x, y + 16 * k, clip(text, wide - 16, 11.5), { size: 11.5, fill: look.soft }));
  }

  // Seen without perspective: x to the right, up is up, and depth grows away from the reader.
  function camera(box) {
    const [sin, cos, rise, flat] = [Math.sin(CAMERA.yaw), Math.cos(CAMERA.yaw), Math.sin(CAMERA.pitch), Math.cos(CAMERA.pitch)];
    const unit = Math.min(box.wide / 3.3, (box.tall - 30) / (1.3 * flat + 2.83 * rise)) * CAMERA.zoom;
    box.unit = unit;
    return (x, y, z) => {
      const depth = x * sin + y * cos;
      return [box.wide / 2 + 8 + unit * (x * cos - y * sin), box.tall / 2 - unit * (z * flat + depth * rise), depth];
    };
  }

  function landscape(pen, box, limits, look) {
    const see = camera(box), { share } = box;
    box.points = share.map((row, j) => row.map((t, i) => (t === null ? null : see(u[i], v[j], 1.3 * Math.min(1, t) - 0.65))));
    room(pen, see, limits, look);
    const quads = [];
    for (let j = 0; j + 1 < v.length; j++) {
      for (let i = 0; i + 1 < u.length; i++) {
        const corners = [[j, i], [j, i + 1], [j + 1, i + 1], [j + 1, i]];
        const points = corners.map(([b, a]) => box.points[b][a]);
        if (points.includes(null)) continue; // a loss that is not finite leaves a hole
        const heights = corners.map(([b, a]) => share[b][a]);
        if (Math.min(...heights) >= 1) continue; // all of it is cut off
        quads.push({ points, mean: heights.reduce((sum, h) => sum + Math.min(1, h), 0) / 4, depth: see((u[i] + u[i + 1]) / 2, (v[j] + v[j + 1]) / 2, 0)[2] });
      }
    }
    quads.sort((a, b) => b.depth - a.depth); // the painter begins at the back
    const mesh = 0.24 * Math.min(1, Math.max(0, (1.4 * box.unit / u.length - 3) / 4)); // lines only where they have room
    for (const { points, mean } of quads) {
      const colour = mix(MAPS.sequential, mean);
      pen.polygon(points, paint(colour), paint(colour.map((c) => Math.round(c + (255 - c) * mesh))));
    }
  }

  // Floor, back walls and ticks; which walls are at the back depends on where the reader stands.
  function room(pen, see, limits, look) {
    const x = Math.sin(CAMERA.yaw) >= 0 ? 1 : -1, y = Math.cos(CAMERA.yaw) >= 0 ? 1 : -1;
    const height = scale(limits, [-0.65, 0.65], view.log);
    pen.polygon([[-1, -1], [1, -1], [1, 1], [-1, 1]].map(([a, b]) => see(a, b, -0.65)), look.empty, look.rule);
    const left = see(x, -y, 0)[0] < see(-x, y, 0)[0] ? [x, -y] : [-x, y];
    for (const tick of ticks(limits, 4, view.log)) {
      const z = height(tick.at);
      pen.line([see(x, -y, z), see(x, y, z), see(-x, y, z)], look.grid);
      const [tx, ty] = see(...left, z);
      pen.text(tx - 5, ty + 4, tick.text, { size: 10, anchor: "end", fill: look.soft });
    }
    for (const [a, b] of [[x, -y], [x, y], [-x, y]]) pen.line([see(a, b, -0.65), see(a, b, 0.65)], look.rule);
  }

  function cross(pen, map, look) {
    const x = map.x + (cursor.i / (figure.x.length - 1)) * map.size, y = map.y + map.size * (1 - cursor.j / (figure.y.length - 1));
    pen.line([[x - 6, y], [x + 6, y]], look.paper, 3);
    pen.line([[x, y - 6], [x, y + 6]], look.paper, 3);
    pen.line([[x - 6, y], [x + 6, y]], look.ink, 1);
    pen.line([[x, y - 6], [x, y + 6]], look.ink, 1);
  }

  // What is under the pointer, on a map or on a relief; every model tells its value at the same place.
  function pick(event) {
    const area = canvas.getBoundingClientRect(), px = event.clientX - area.left, py = event.clientY - area.top;
    cursor = null;
    for (const box of panels) {
      const { map } = box, s = (px - map.x) / map.size, t = 1 - (py - map.y) / map.size;
      if (s >= 0 && s <= 1 && t >= 0 && t <= 1) cursor = { i: s * (figure.x.length - 1), j: t * (figure.y.length - 1) };
      let best = 14;
      box.points.forEach((row, j) => row.forEach((point, i) => {
        const far = point ? Math.hypot(point[0] + box.x - px, point[1] + box.y - py) + 10 * point[2] : Infinity;
        if (far < best && box.share[j][i] < 1) [best, cursor] = [far, { i: i / more, j: j / more }];
      }));
    }
    repaint();
    if (!cursor) return tip.hide();
    return tip.show(event, [
      { text: `at (${show(alongAxis(figure.x, cursor.i))}, ${show(alongAxis(figure.y, cursor.j))}), ${figure.z}:` },
      ...figure.models.map((model) => ({ text: `${apart(model.name)}: ${show(between(model.loss, cursor.i, cursor.j))}` })),
    ]);
  }

  const reset = turnable(canvas, CAMERA, () => CAMERA.watchers.forEach((watch) => watch()));
  CAMERA.watchers.add(repaint);
  canvas.addEventListener("pointermove", (event) => { if (!event.buttons) pick(event); });
  canvas.addEventListener("pointerleave", () => { cursor = null; repaint(); });
  const cut = el("input", {
    type: "range", min: 0.02, max: 1, step: 0.01, value: 1, "aria-label": "cut-off of the loss",
    oninput: () => { view.cut = Number(cut.value); repaint(); },
  });
  const log = el("input", { type: "checkbox", onchange: () => { view.log = log.checked; basins(); repaint(); } });
  log.checked = view.log;
  log.disabled = !positive;
  basins();
  stage.tools.append(
    el("label", { class: "tool" }, "cut off above ", cut, " ", reading),
    el("label", { class: "tool" }, log, " log scale"),
    button("Reset view", reset),
  );
  stage.hint("Drag to turn all surfaces, pinch to zoom; after a click the wheel zooms and the arrow keys turn. Lines on the maps are a tenth of the scale apart.");

  const draw = (wide) => { width = wide; paintAll(); return canvas; };
  const picture = () => {
    const root = sheet(width, layout().height, figure.title);
    sketch(svgPen(root));
    return root;
  };
  const rows = () => [["model", "x", "y", figure.z], ...figure.models.flatMap((model) =>
    model.loss.flatMap((row, j) => row.map((loss, i) => [model.name, figure.x[i], figure.y[j], loss])))];
  return { draw, picture, rows };
};
