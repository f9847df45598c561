// Two pens with the same strokes: a canvas for what moves, SVG for what is kept. A drawing does not know which it has.
const ANCHORS = { start: "left", middle: "center", end: "right" };

function canvasPen(context) {
  const trace = (points) => {
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  };
  const stroke = (colour, width) => {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke();
  };
  return {
    polygon(points, fill, edge, width = 0.5) {
      trace(points);
      context.closePath();
      context.fillStyle = fill;
      context.fill();
      stroke(edge || fill, width);
    },
    line(points, colour, width = 1) {
      trace(points);
      stroke(colour, width);
    },
    rect(x, y, width, height, fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, width, height);
    },
    text(x, y, text, { size = 12, anchor = "start", fill, weight = 400 } = {}) {
      context.font = `${weight} ${size}px ${FONT}`;
      context.textAlign = ANCHORS[anchor];
      context.fillStyle = fill;
      context.fillText(text, x, y);
    },
    panel(x, y, width, height, inside) {
      context.save();
      context.translate(x, y);
      context.beginPath();
      context.rect(0, 0, width, height);
      context.clip();
      inside(this);
      context.restore();
    },
  };
}

const path = (points) => points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");

function svgPen(root) {
  const put = (node) => {
    root.append(node);
    return node;
  };
  return {
    polygon: (points, fill, edge, width = 0.5) =>
      put(svg("polygon", { points: path(points), fill, stroke: edge || fill, "stroke-width": width })),
    line: (points, colour, width = 1, dash) =>
      put(svg("polyline", {
        points: path(points), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dash,
        "stroke-linejoin": "round", "stroke-linecap": dash ? "butt" : "round",
      })),
    rect: (x, y, width, height, fill) => put(svg("rect", { x, y, width, height, fill })),
    text: (x, y, text, { size = 12, anchor = "start", fill, weight = 400, turn } = {}) =>
      put(svg("text", {
        x, y, "font-size": size, "text-anchor": anchor, fill, "font-weight": weight === 400 ? null : weight,
        transform: turn ? `rotate(${turn} ${x} ${y})` : null,
      }, text)),
    panel(x, y, width, height, inside) {
      inside(svgPen(put(svg("svg", { x, y, width, height, overflow: "hidden" }))));
    },
  };
}

function sheet(wide, tall, label) {
  const width = Math.ceil(wide), height = Math.ceil(tall);
  return svg("svg", {
    xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, role: "group", "aria-label": label,
  });
}

// The key to the colours, with its ticks below and its label before it.
function colourBar(pen, { x, y, width, map, domain, log, label, look }) {
  const steps = 64, share = width / steps;
  for (let i = 0; i < steps; i++) pen.rect(x + i * share, y, width - i * share, 9, paint(mix(map, (i + 0.5) / steps)));
  const place = scale(domain, [x, x + width], log);
  for (const tick of ticks(domain, Math.max(4.5, width / 55), log)) {
    pen.line([[place(tick.at), y + 9], [place(tick.at), y + 13]], look.soft);
    pen.text(place(tick.at), y + 25, tick.text, { size: 11, anchor: "middle", fill: look.soft });
  }
  pen.text(x - 10, y + 9, label, { anchor: "end", fill: look.ink });
}
