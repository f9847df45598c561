// Small pictures in rows and columns, such as feature maps: each column on one scale, with the input before them.
KINDS.tiles = (figure) => {
  const scales = figure.columns.map((_, j) => extent(figure.tiles.flatMap((row) => row[j].flat())));
  const pictures = figure.tiles.map((row) => row.map((tile, j) => picture(tile, (value) => {
    const [low, high] = scales[j];
    return value === null ? null : mix(MAPS.sequential, (value - low) / (high - low || 1));
  })));
  const inputs = figure.inputs?.map((tile) => picture(tile, (pixel) => pixel));
  const heads = [...(inputs ? ["input"] : []), ...figure.columns];

  function picture(tile, channels) {
    const canvas = el("canvas", { width: tile[0].length, height: tile.length });
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    tile.forEach((line, i) => line.forEach((value, j) => {
      const found = channels(value);
      if (found) image.data.set([...found, 255], 4 * (i * canvas.width + j));
    }));
    context.putImageData(image, 0, 0);
    return { href: canvas.toDataURL(), wide: canvas.width, tall: canvas.height };
  }

  function draw(width) {
    const look = theme();
    const room = Math.min(width * 0.3, 170), names = figure.rows.map((name) => inLines(name, room));
    const side = Math.min(room, Math.max(20, ...names.flat().map((line) => textWidth(line)))) + 10;
    const size = Math.max(36, Math.min(120, Math.floor((width - side - 24) / Math.max(1, heads.length)) - 6));
    const space = headSpace(heads, size + 2), keys = 44;
    const full = side + heads.length * (size + 6) + space.slant, bottom = space.height + figure.rows.length * (size + 6);
    const root = sheet(full, bottom + keys, figure.title), pen = svgPen(root);
    columnHeads(pen, heads, (j) => side + j * (size + 6) + size / 2, space.height, space, look);
    figure.rows.forEach((name, i) => {
      const y = space.height + i * (size + 6), shown = [...(inputs ? [inputs[i]] : []), ...pictures[i]];
      names[i].forEach((line, k) => pen.text(side - 10, y + size / 2 + 4 + (k - (names[i].length - 1) / 2) * 15, clip(line, side - 10), { anchor: "end", fill: look.ink })
        .append(svg("title", {}, name)));
      shown.forEach((tile, j) => {
        pen.rect(side + j * (size + 6), y, size, size, look.empty);
        const column = j - (inputs ? 1 : 0);
        const image = svg("image", {
          href: tile.href, x: side + j * (size + 6), y, width: size, height: size, "image-rendering": "pixelated",
          onpointermove: (event) => tip.show(event, [{ text: read(i, column, event) }]), onpointerleave: () => tip.hide(),
        });
        image.style.imageRendering = "pixelated";
        root.append(image);
      });
    });
    figure.columns.forEach((_, j) => { // the scale of each column below it
      const x = side + (j + (inputs ? 1 : 0)) * (size + 6);
      for (let k = 0; k < 32; k++) pen.rect(x + (k * size) / 32, bottom + 6, size / 32 + 0.4, 7, paint(mix(MAPS.sequential, (k + 0.5) / 32)));
      if (size > 56) pen.text(x, bottom + 27, show(scales[j][0]), { size: 10, fill: look.soft });
      pen.text(x + size, bottom + 27, show(scales[j][1]), { size: 10, anchor: "end", fill: look.soft });
    });
    return root;
  }

  // A name that is too wide goes on below its first comma.
  function inLines(name, room) {
    const at = textWidth(name) > room ? name.indexOf(", ") : -1;
    return at < 0 ? [name] : [name.slice(0, at + 1), name.slice(at + 2)];
  }

  function read(i, j, event) {
    if (j < 0) return `${apart(figure.rows[i])} · input`;
    const { wide, tall } = pictures[i][j], box = event.target.getBoundingClientRect();
    const unit = Math.min(box.width / wide, box.height / tall); // the picture keeps its shape, in the middle of the square
    const c = Math.floor((event.clientX - box.left - (box.width - unit * wide) / 2) / unit);
    const r = Math.floor((event.clientY - box.top - (box.height - unit * tall) / 2) / unit);
    const value = figure.tiles[i][j][r]?.[c];
    return `${apart(figure.rows[i])} · ${apart(figure.columns[j])}${value === undefined ? "" : `: [${r}, ${c}] ${show(value)}`}`;
  }

  function rows() {
    const table = [["row", "column", "i", "j", "value"]];
    figure.tiles.forEach((row, r) => row.forEach((tile, c) => tile.forEach((line, i) => line.forEach((value, j) =>
      table.push([figure.rows[r], figure.columns[c], i, j, value])))));
    return table;
  }
  return { draw, rows };
};
