// Loss surfaces that can be turned: all models side by side, on one scale, seen from one place.
KINDS.surface = (figure, stage) => {
  const values = figure.models.flatMap((model) => model.loss.flat());
  const view = { yaw: 0.65, pitch: 0.52, zoom: 1, log: figure.log_z && values.some((v) => v > 0), cut: 1 };
  const [u, v] = [figure.x, figure.y].map((axis) => axis.map(scale([axis[0], axis.at(-1)], [-1, 1])));
  const canvas = el("canvas", { tabindex: 0, role: "img" });
  const reading = el("output", { class: "reading" });
  let width = 0, panels = [], due = false;

  function domain() {
    const [low, high] = extent(values, view.log);
    const cut = view.log ? low * (high / low) ** view.cut : low + (high - low) * view.cut;
    return [low, cut];
  }

  function paintAll() {
    const height = layout().height, sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    sketch(canvasPen(context));
    reading.textContent = `${show(domain()[1])}`;
    canvas.setAttribute("aria-label", `${figure.title}. Loss surfaces of ${figure.models.map((m) => m.name).join(", ")}. `
      + "Arrow keys turn them, plus and minus zoom, 0 goes back.");
  }

  function repaint() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; paintAll(); });
  }

  function layout() {
    const most = Math.max(1, Math.floor(width / (width < 600 ? 165 : 280)));
    const down = Math.ceil(figure.models.length / most), across = Math.ceil(figure.models.length / down) || 1;
    const wide = width / across, tall = Math.min(wide * 0.92, 430);
    return { across, wide, tall, height: down * tall + 44 };
  }

  function sketch(pen) {
    const look = theme(), limits = domain(), { across, wide, tall, height } = layout();
    panels = figure.models.map((model, i) => {
      const box = { x: (i % across) * wide, y: Math.floor(i / across) * tall, wide, tall, model };
      pen.panel(box.x, box.y, wide, tall, (own) => landscape(own, box, limits, look));
      return box;
    });
    const label = clip(figure.z, width * 0.4), long = Math.min(280, width - textWidth(label) - 60);
    colourBar(pen, {
      x: (width - long + textWidth(label)) / 2, y: height - 34, width: long, map: MAPS.sequential, domain: limits, log: view.log, label, look,
    });
  }

  // Seen without perspective: x to the right, up is up, and depth grows away from the reader.
  function camera(box) {
    const [sin, cos, rise, flat] = [Math.sin(view.yaw), Math.cos(view.yaw), Math.sin(view.pitch), Math.cos(view.pitch)];
    const { wide, tall } = box, small = wide < 240;
    const unit = Math.min(wide / (small ? 3.7 : 3.3), (tall - (small ? 36 : 50)) / (1.3 * flat + 2.83 * rise)) * view.zoom;
    box.unit = unit;
    return (x, y, z) => {
      const depth = x * sin + y * cos;
      return [wide / 2 + unit * (x * cos - y * sin), (tall + (small ? 28 : 18)) / 2 - unit * (z * flat + depth * rise), depth];
    };
  }

  function landscape(pen, box, limits, look) {
    const see = camera(box), level = scale(limits, [0, 1], view.log);
    const share = box.model.loss.map((row) => row.map((l) => (drawable(l, view.log) ? Math.min(1, Math.max(0, level(l))) : null)));
    box.points = share.map((row, j) => row.map((t, i) => (t === null ? null : see(u[i], v[j], 1.3 * t - 0.65))));
    room(pen, see, limits, look, box.wide < 240);
    const quads = [];
    for (let j = 0; j + 1 < v.length; j++) {
      for (let i = 0; i + 1 < u.length; i++) {
        const corners = [[j, i], [j, i + 1], [j + 1, i + 1], [j + 1, i]];
        const points = corners.map(([b, a]) => box.points[b][a]);
        if (points.includes(null)) continue; // a loss that is not finite leaves a hole
        const mean = corners.reduce((sum, [b, a]) => sum + share[b][a], 0) / 4;
        quads.push({ points, mean, depth: see((u[i] + u[i + 1]) / 2, (v[j] + v[j + 1]) / 2, 0)[2] });
      }
    }
    quads.sort((a, b) => b.depth - a.depth); // the painter begins at the back
    const mesh = 0.24 * Math.min(1, Math.max(0, (1.4 * box.unit / u.length - 3) / 4)); // lines only where they have room
    for (const { points, mean } of quads) {
      const colour = mix(MAPS.sequential, mean);
      pen.polygon(points, paint(colour), paint(colour.map((c) => Math.round(c + (255 - c) * mesh))));
    }
    pen.text(box.wide / 2, 18, clip(box.model.name, box.wide - 16, 13, 600), { size: 13, anchor: "middle", weight: 600, fill: look.ink });
  }

  // Floor, back walls and ticks; which walls are at the back depends on where the reader stands.
  function room(pen, see, limits, look, small) {
    const x = Math.sin(view.yaw) >= 0 ? 1 : -1, y = Math.cos(view.yaw) >= 0 ? 1 : -1;
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
    const edge = (axis, a, b, name) => { // ticks of the floor, along its two front edges
      const right = see(a(0), b(0), 0)[0] > see(0, 0, 0)[0];
      [[-1, show(axis[0])], [0, name], [1, show(axis.at(-1))]].forEach(([t, text]) => {
        const [tx, ty] = see(a(t), b(t), -0.65);
        pen.text(tx + (right ? 5 : -5), ty + 12, text, { size: 10, anchor: right ? "start" : "end", fill: look.soft });
      });
    };
    if (small) return;
    edge(figure.x, (t) => t * 0.94, () => -y, "direction 1");
    edge(figure.y, () => -x, (t) => t * 0.94, "direction 2");
  }

  const reset = turnable(canvas, view, repaint);
  canvas.addEventListener("pointermove", (event) => { if (!event.buttons) pick(event); });

  function pick(event) {
    const frame = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const box = panels.find((b) => px >= b.x && px < b.x + b.wide && py >= b.y && py < b.y + b.tall);
    let best = null;
    box?.points.forEach((row, j) => row.forEach((point, i) => {
      const far = point ? Math.hypot(point[0] + box.x - px, point[1] + box.y - py) : Infinity;
      if (far < 12 && (!best || far + 40 * point[2] < best.cost)) best = { i, j, cost: far + 40 * point[2] };
    }));
    if (!best) return tip.hide();
    const loss = box.model.loss[best.j][best.i];
    return tip.show(event, [
      { text: box.model.name }, { text: `${figure.z}: ${show(loss)}` },
      { text: `at (${show(figure.x[best.i])}, ${show(figure.y[best.j])})` },
    ]);
  }

  const cut = el("input", {
    type: "range", min: 0.02, max: 1, step: 0.01, value: 1, "aria-label": "cut-off of the loss",
    oninput: () => { view.cut = Number(cut.value); repaint(); },
  });
  const log = el("input", { type: "checkbox", onchange: () => { view.log = log.checked; repaint(); } });
  log.checked = view.log;
  log.disabled = !values.some((value) => value > 0);
  stage.tools.append(
    el("label", { class: "tool" }, "cut off above ", cut, " ", reading),
    el("label", { class: "tool" }, log, " log scale"),
    button("Reset view", reset),
  );
  stage.hint("Drag to turn, pinch to zoom; after a click the wheel zooms and the arrow keys turn.");

  const draw = (wide) => {
    width = wide;
    paintAll();
    return canvas;
  };
  const picture = () => {
    const root = sheet(width, layout().height, figure.title);
    sketch(svgPen(root));
    return root;
  };
  const rows = () => [["model", "x", "y", figure.z], ...figure.models.flatMap((model) =>
    model.loss.flatMap((row, j) => row.map((loss, i) => [model.name, figure.x[i], figure.y[j], loss])))];
  return { draw, picture, rows };
};
