// Masks over training: one layer at a time, what has grown and what was dropped since the frame before, and how much.
KINDS.film = (figure, stage) => {
  const canvas = el("canvas", { role: "img" });
  const label = el("output", { class: "reading", dir: "auto" });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const motion = (l) => figure.frames.reduce((sum, f) => sum + (f.moved?.[l] || 0), 0); // the layer that moves most is shown first
  let layer = figure.layers.reduce((best, _, l) => (motion(l) > motion(best) ? l : best), 0), frame = 0, width = 0, timer = null;

  function bits(f, l) {
    const bytes = atob(figure.frames[f].masks[l]), [rows, columns] = figure.layers[l].shape;
    return Uint8Array.from({ length: rows * columns }, (_, k) => (bytes.charCodeAt(k >> 3) >> (7 - (k & 7))) & 1);
  }

  const size = () => {
    const [rows, columns] = figure.layers[layer].shape;
    const fit = Math.min(width / columns, 420 / rows, 18);
    const unit = fit >= 2 ? Math.floor(fit) : fit;
    return { rows, columns, unit, height: Math.ceil(rows * unit) + (figure.frames[0].moved ? 98 : 34) };
  };

  function sketch(pen) {
    const look = theme(), { rows, columns, unit } = size();
    const now = bits(frame, layer), before = frame ? bits(frame - 1, layer) : now;
    const paints = { 0: null, 1: look.series(1), 2: look.series(2), 3: look.ink };
    const count = [0, 0, 0, 0], gap = unit >= 5 ? 1 : 0;
    pen.rect(0, 0, columns * unit, rows * unit, look.empty);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const at = r * columns + c, state = now[at] * 2 + before[at];
        count[state]++;
        if (paints[state]) pen.rect(c * unit, r * unit, unit - gap, unit - gap, paints[state]);
      }
    }
    const words = [[`kept ${show(count[3])}`, look.ink], [`grown ${show(count[2])}`, look.series(2)], [`dropped ${show(count[1])}`, look.series(1)]];
    let x = 0;
    for (const [text, colour] of words) {
      pen.rect(x, rows * unit + 14, 11, 11, colour);
      pen.text(x + 16, rows * unit + 24, text, { fill: look.soft });
      x += textWidth(text) + 36;
    }
    const active = count[2] + count[3], { step, label: name, moved, survived } = figure.frames[frame];
    const percent = (share) => `${(100 * share).toFixed(1)} %`;
    label.textContent = `step ${show(step)}${name ? ` · ${apart(name)}` : ""} · ${show(active)} of ${show(now.length)} active (${percent(active / now.length)})`
      + (moved ? ` · ${percent(moved[layer])} moved since the frame before, ${percent(survived[layer])} of the first mask is left` : "");
    if (moved) history(pen, look, rows * unit + 40);
    canvas.setAttribute("aria-label", `${figure.title}: ${figure.layers[layer].name}, ${label.textContent}`);
  }

  // The share that moved at each frame, as small bars; the frame of now is dark.
  function history(pen, look, top) {
    const all = figure.frames.map((f) => f.moved[layer]), most = Math.max(0.01, ...all), each = Math.min(26, (wideOf() - 4) / all.length);
    pen.text(0, top + 10, `share of this layer's mask that moved (at most ${(100 * most).toFixed(1)} %)`, { size: 11, fill: look.soft });
    all.forEach((share, k) => {
      const tall = Math.max(1, (share / most) * 36);
      pen.rect(k * each, top + 54 - tall, Math.max(1, each - 2), tall, k === frame ? look.ink : look.rule);
    });
  }
  const wideOf = () => Math.max(size().columns * size().unit, Math.min(width, 320));

  function paintFrame() {
    const { height } = size(), wide = wideOf(), sharp = window.devicePixelRatio || 1;
    canvas.width = Math.round(wide * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    sketch(canvasPen(context));
  }

  const slider = el("input", {
    type: "range", min: 0, max: figure.frames.length - 1, step: 1, value: 0, "aria-label": "frame",
    oninput: () => { stop(); go(Number(slider.value)); },
  });
  function go(to) {
    frame = to;
    slider.value = to;
    paintFrame();
  }
  function stop() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }
  const play = button("Play", () => {
    if (timer) return stop();
    if (frame === figure.frames.length - 1) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => (frame + 1 < figure.frames.length ? go(frame + 1) : stop()), calm ? 1200 : 350);
    return timer;
  });
  stage.tools.append(
    chooser("layer", figure.layers.map((l) => `${l.name} (${l.shape.join(" × ")})`), (i) => { layer = i; paintFrame(); }, layer),
    play, slider, label,
  );

  const draw = (wide) => {
    width = wide;
    paintFrame();
    return canvas;
  };
  const picture = () => {
    const root = sheet(wideOf(), size().height, figure.title);
    sketch(svgPen(root));
    return root;
  };
  function rows() {
    const table = [["step", "label", "layer", "active row", "active column"]];
    figure.frames.forEach((f, k) => figure.layers.forEach((l, i) => bits(k, i).forEach((bit, at) => {
      if (bit) table.push([f.step, f.label, l.name, Math.floor(at / l.shape[1]), at % l.shape[1]]);
    })));
    return table;
  }
  return { draw, picture, rows };
};
