// Accuracy against cost: a dot for each seed, the front, and lines that join one arm at several lengths.
KINDS.scatter = (figure, stage) => {
  const off = new Set(), keys = Object.keys(figure.x);
  let panel = figure.panels[0], key = keys[0];
  if (figure.panels.length > 1) stage.tools.append(chooser("task", figure.panels.map((p) => p.name), (i) => { panel = figure.panels[i]; stage.redraw(); }));
  if (keys.length > 1) stage.tools.append(chooser("cost", keys.map((k) => figure.x[k]), (i) => { key = keys[i]; stage.redraw(); }));

  const mean = (arm, of) => arm.seeds.reduce((sum, seed) => sum + seed[of], 0) / arm.seeds.length;
  const named = (arm) => arm.arm ?? arm.name; // an optimizer, whatever its settings
  const seen = () => panel.arms.filter((arm) => !off.has(named(arm)) && !off.has(`sparsity ${arm.sparsity}`));

  function entries(look) {
    const entry = switches(off), once = (of) => [...new Map(panel.arms.map((arm) => [of(arm), arm])).values()];
    return [
      ...once(named).map((arm) => entry(named(arm), named(arm), (pen, x, y) => pen.rect(x + 4, y - 5, 14, 10, look.of(arm)))),
      ...once((arm) => arm.sparsity).sort((a, b) => sparsityOf(a) - sparsityOf(b)).map((arm) => entry(`sparsity ${arm.sparsity}`, arm.sparsity, (pen, x, y) => {
        pen.line([[x, y], [x + 22, y]], look.soft, 1.5, dashOf(arm));
        marker(pen, sparsityOf(arm), x + 11, y, look.soft, 4);
      })),
    ];
  }

  function draw(width) {
    const look = theme(), arms = seen().length ? seen() : panel.arms;
    const top = flow(entries(look), width);
    const costs = arms.flatMap((arm) => arm.seeds.map((seed) => seed[key]));
    const { per, label, tell } = unit(key, figure.x[key], costs);
    const [low, high] = extent(costs), log = low > 0 && high / low > 8;
    const axes = {
      x: { domain: roomy([low / per, high / per], log, 0.07), log, label },
      y: { domain: upTo(figure.most, roomy(extent(usual(arms.flatMap((arm) => arm.seeds.map((seed) => seed.y)))), false, 0.06)), label: figure.y },
    };
    const area = { top: top.height + 28, bottom: top.height + 28 + Math.round(Math.max(260, Math.min(400, width * 0.4))), right: width - 14 };
    area.left = axisWidth(axes.y, area);
    const root = sheet(width, area.bottom + 44, figure.title), pen = svgPen(root);
    const { x, y } = frame(pen, area, axes, look);
    // what lies far from all others, such as a training that has diverged, is drawn on the edge
    const edge = (at) => Math.max(area.top, Math.min(area.bottom - 3, at));
    const aside = asides(seen(), (arm) => x(mean(arm, key) / per), width);
    const place = (seed, arm) => [x(seed[key] / per) + aside.get(arm), edge(y(seed.y))];
    const centre = (arm) => [x(mean(arm, key) / per) + aside.get(arm), edge(y(mean(arm, "y")))];
    front(pen, centre, area, look);
    joined(pen, centre, look);
    const dots = [];
    for (const arm of seen()) {
      const group = svg("g", { "data-arm": arm.name }), own = svgPen(group), best = arm.front.includes(key);
      for (const seed of arm.seeds) {
        const [px, py] = place(seed, arm);
        dots.push({ arm, seed, px, py });
        marker(own, sparsityOf(arm), px, py, look.of(arm), best ? 4.6 : 3.2, best ? null : look.paper);
      }
      root.append(group);
    }
    labels(pen, centre, dots, area, look);
    legend(root, top.placed, stage, look);
    root.append(reader(area, dots, look, tell));
    return root;
  }

  // Arms of exactly the same cost stand side by side.
  function asides(arms, at, width) {
    const places = new Map();
    for (const arm of arms) places.set(at(arm).toFixed(1), [...(places.get(at(arm).toFixed(1)) || []), arm]);
    const step = (n) => Math.min(7, (width * 0.07) / n);
    return new Map([...places.values()].flatMap((own) => own.map((arm, k) => [arm, (k - (own.length - 1) / 2) * step(own.length)])));
  }

  const onFront = () => seen().filter((arm) => arm.front.includes(key)).sort((a, b) => mean(a, key) - mean(b, key));

  function front(pen, centre, area, look) {
    const points = onFront().map(centre);
    if (!points.length) return;
    const stairs = points.flatMap(([px, py], i) => (i ? [[px, points[i - 1][1]], [px, py]] : [[px, area.bottom], [px, py]]));
    pen.line([...stairs, [area.right, points.at(-1)[1]]], look.rule, 6).setAttribute("opacity", 0.5);
    onFront().forEach((arm, i) => pen.line([[points[i][0] - 7, points[i][1]], [points[i][0] + 7, points[i][1]]], look.of(arm), 2.5));
  }

  function joined(pen, centre, look) {
    const chains = new Map();
    for (const arm of seen()) {
      const chain = `${arm.name}|${arm.sparsity}|${arm.method}`;
      chains.set(chain, [...(chains.get(chain) || []), arm]);
    }
    for (const chain of chains.values()) {
      if (chain.length < 2) continue;
      pen.line([...chain].sort((a, b) => a.epochs - b.epochs).map(centre), look.of(chain[0]), 1.4, dashOf(chain[0])).setAttribute("opacity", 0.75);
    }
  }

  // The front is named, above or below, as far as names touch neither one another nor a dot.
  function labels(pen, centre, dots, area, look) {
    const taken = [], alike = new Set(panel.arms.map((arm) => arm.where)).size === 1; // then it need not be said of each
    const long = new Set(panel.arms.map((arm) => arm.epochs)).size > 1, where = (arm) => (long ? arm.where : arm.where.replace(/, \d+ epochs?$/, ""));
    for (const arm of onFront().reverse()) {
      const text = alike ? arm.name : `${arm.name}, ${where(arm)}`, wide = textWidth(text, 11), [px, py] = centre(arm);
      const touches = (box) => taken.some((b) => box[0] < b[2] + 6 && box[2] > b[0] - 6 && box[1] < b[3] + 2 && box[3] > b[1] - 2);
      const covers = (b) => dots.some((dot) => dot.px > b[0] - 6 && dot.px < b[2] + 6 && dot.py > b[1] - 6 && dot.py < b[3] + 6);
      const box = [py - 22, py + 8].flatMap((top) => [px - wide - 10, px + 10].map((left) => [left, top, left + wide, top + 14]))
        .find((b) => b[0] > area.left && b[2] < area.right && b[1] > area.top && b[3] < area.bottom && !touches(b) && !covers(b));
      if (!box) continue;
      taken.push(box);
      const word = pen.text(box[0], box[3] - 3, text, { size: 11, fill: look.ink });
      word.setAttribute("paint-order", "stroke");
      word.setAttribute("stroke", look.paper);
      word.setAttribute("stroke-width", 3);
    }
  }

  function reader(area, dots, look, tell) {
    const marks = svg("g", { "pointer-events": "none" }), order = [...dots].sort((a, b) => a.px - b.px);
    let now = -1;
    const read = (dot, event) => {
      marks.replaceChildren();
      const pen = svgPen(marks), { arm } = dot;
      for (const other of dots.filter((d) => d.arm === arm)) marker(pen, sparsityOf(arm), other.px, other.py, look.of(arm), 6);
      marker(pen, 0, dot.px, dot.py, look.ink, 9, "transparent");
      tip.show(event, [
        { colour: look.of(arm), text: apart(arm.name) }, { text: arm.where },
        { text: `seed ${dot.seed.seed}: ${dot.seed.y.toFixed(2)} % in ${tell(dot.seed[key])}` },
        { text: `mean of ${arm.seeds.length}: ${mean(arm, "y").toFixed(2)} % in ${tell(mean(arm, key))}` },
        ...(arm.front.includes(key) ? [{ text: "on the front" }] : []),
      ]);
    };
    const clear = () => { marks.replaceChildren(); tip.hide(); };
    const point = (event) => {
      const box = pad.getBoundingClientRect(), px = event.clientX - box.left + area.left, py = event.clientY - box.top + area.top;
      const far = (dot) => Math.hypot(dot.px - px, dot.py - py);
      const best = dots.reduce((a, b) => (!a || far(b) < far(a) ? b : a), null);
      if (!best || far(best) > 40) return clear();
      now = order.indexOf(best);
      return read(best, event);
    };
    const step = (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !order.length) return;
      event.preventDefault();
      now = Math.min(order.length - 1, Math.max(0, now + move));
      const box = pad.getBoundingClientRect();
      read(order[now], { clientX: box.left + order[now].px - area.left, clientY: box.top + order[now].py - area.top });
    };
    const pad = svg("rect", {
      class: "pad", x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top, fill: "transparent", tabindex: 0, role: "img",
      "aria-label": `${figure.title}: left and right arrow keys go from dot to dot`,
      onpointermove: point, onpointerdown: point, onpointerleave: clear, onblur: clear, onkeydown: step,
    });
    return svg("g", {}, pad, marks);
  }

  function rows() {
    const table = [["task", "arm", "trained", "sparsity", "seed", "accuracy", ...keys, "on the front by"]];
    for (const p of figure.panels) for (const arm of p.arms) for (const seed of arm.seeds) {
      table.push([p.name, arm.name, arm.where, arm.sparsity, seed.seed, seed.y, ...keys.map((k) => seed[k]), arm.front.join(" ")]);
    }
    return table;
  }
  return { draw, rows };
};
