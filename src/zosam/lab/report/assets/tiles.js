// Small pictures in rows and columns, such as feature maps; each is scaled on its own.
KINDS.tiles = (figure) => {
  const pictures = figure.tiles.map((row) => row.map(picture));

  function picture(tile) {
    const [low, high] = extent(tile.flat());
    const canvas = el("canvas", { width: tile[0].length, height: tile.length });
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    tile.flat().forEach((value, k) => {
      if (value !== null) image.data.set([...mix(MAPS.sequential, (value - low) / (high - low || 1)), 255], 4 * k);
    });
    context.putImageData(image, 0, 0);
    return { low, high, href: canvas.toDataURL(), wide: canvas.width, tall: canvas.height };
  }

  function draw(width) {
    const look = theme();
    const side = Math.min(width * 0.3, 150, Math.max(20, ...figure.rows.map((name) => textWidth(name)))) + 10;
    const size = Math.max(36, Math.min(120, Math.floor((width - side - 24) / Math.max(1, figure.columns.length)) - 6));
    const space = headSpace(figure.columns, size + 2);
    const full = side + figure.columns.length * (size + 6) + space.slant;
    const root = sheet(full, space.height + figure.rows.length * (size + 6), figure.title);
    const pen = svgPen(root);
    columnHeads(pen, figure.columns, (j) => side + j * (size + 6) + size / 2, space.height, space, look);
    figure.rows.forEach((name, i) => {
      const y = space.height + i * (size + 6);
      pen.text(side - 10, y + size / 2 + 4, clip(name, side - 10), { anchor: "end", fill: look.ink }).append(svg("title", {}, name));
      pictures[i].forEach((tile, j) => {
        pen.rect(side + j * (size + 6), y, size, size, look.empty);
        const image = svg("image", {
          href: tile.href, x: side + j * (size + 6), y, width: size, height: size, "image-rendering": "pixelated",
          onpointermove: (event) => tip.show(event, [{ text: read(i, j, event) }]), onpointerleave: () => tip.hide(),
        });
        image.style.imageRendering = "pixelated";
        root.append(image);
      });
    });
    return root;
  }

  function read(i, j, event) {
    const { wide, tall, low, high } = pictures[i][j], box = event.target.getBoundingClientRect();
    const unit = Math.min(box.width / wide, box.height / tall); // the picture keeps its shape, in the middle of the square
    const c = Math.floor((event.clientX - box.left - (box.width - unit * wide) / 2) / unit);
    const r = Math.floor((event.clientY - box.top - (box.height - unit * tall) / 2) / unit);
    const value = figure.tiles[i][j][r]?.[c];
    const here = value === undefined ? "" : `[${r}, ${c}] ${show(value)}; `;
    return `${apart(figure.rows[i])} · ${apart(figure.columns[j])}: ${here}from ${show(low)} to ${show(high)}`;
  }

  function rows() {
    const table = [["row", "column", "i", "j", "value"]];
    figure.tiles.forEach((row, r) => row.forEach((tile, c) => tile.forEach((line, i) => line.forEach((value, j) =>
      table.push([figure.rows[r], figure.columns[c], i, j, value])))));
    return table;
  }
  return { draw, rows };
};
