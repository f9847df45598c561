// A map of a surface from above: smooth colour, and lines of equal value by marching squares.
const FINE = 2; // colour is drawn this many times finer than the grid, with values between its points

// The value at a place between grid points, straight between them; null beside a gap.
function between(grid, i, j) {
  const a = Math.min(grid[0].length - 2, Math.floor(i)), b = Math.min(grid.length - 2, Math.floor(j)), s = i - a, t = j - b;
  const [p, q, r, u] = [grid[b][a], grid[b][a + 1], grid[b + 1][a], grid[b + 1][a + 1]];
  return [p, q, r, u].includes(null) ? null : (p * (1 - s) + q * s) * (1 - t) + (r * (1 - s) + u * s) * t;
}

// Pieces of the line where the grid has the value `level`, as pairs of places in the grid.
function isoline(grid, level) {
  const found = [];
  for (let b = 0; b + 1 < grid.length; b++) {
    for (let a = 0; a + 1 < grid[0].length; a++) {
      const corners = [[a, b], [a + 1, b], [a + 1, b + 1], [a, b + 1]], values = corners.map(([i, j]) => grid[j][i]);
      if (values.includes(null)) continue;
      const crossed = [];
      for (let k = 0; k < 4; k++) {
        const [v, w] = [values[k], values[(k + 1) % 4]], [p, q] = [corners[k], corners[(k + 1) % 4]];
        if (v < level === w < level) continue;
        const t = (level - v) / (w - v);
        crossed.push([p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]);
      }
      for (let k = 0; k + 1 < crossed.length; k += 2) found.push([crossed[k], crossed[k + 1]]);
    }
  }
  return found;
}

// A place between the entries of an axis.
function alongAxis(axis, k) {
  const a = Math.min(axis.length - 2, Math.floor(k));
  return axis[a] + (axis[a + 1] - axis[a]) * (k - a);
}

// The grid `more` times as fine, smooth through its points (Catmull-Rom), straight beside a gap.
function finer(grid, more) {
  if (more === 1) return grid;
  const curve = (row, k) => {
    const a = Math.min(row.length - 2, Math.floor(k / more)), t = k / more - a, [p, q, r, s] = [row[a - 1] ?? row[a], row[a], row[a + 1], row[a + 2] ?? row[a + 1]];
    if (q === null || r === null) return t === 0 ? q : t === 1 ? r : null;
    const [d, e] = [(r - (p ?? q)) / 2, ((s ?? r) - q) / 2];
    return Math.max(0, q + t * d + t * t * (3 * (r - q) - 2 * d - e) + t * t * t * (2 * (q - r) + d + e));
  };
  const stretch = (row) => Array.from({ length: (row.length - 1) * more + 1 }, (_, k) => curve(row, k));
  const wide = grid.map(stretch), columns = wide[0].map((_, i) => stretch(wide.map((row) => row[i])));
  return columns[0].map((_, j) => columns.map((column) => column[j]));
}

// What is left of a cell, given by the places of its corners and their values, where the value is at most 1.
function below(corners, values) {
  return corners.flatMap((p, k) => {
    const q = corners[(k + 1) % 4], [v, w] = [values[k], values[(k + 1) % 4]], t = (1 - v) / (w - v);
    return [...(v <= 1 ? [p] : []), ...(v <= 1 === w <= 1 ? [] : [[p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])]])];
  });
}

// `share` holds the height of each grid point from 0 to 1, above it is cut off; the box is a square.
function contourMap(pen, share, box, levels, look) {
  const across = share[0].length - 1, down = share.length - 1, place = ([i, j]) => [box.x + (i / across) * box.size, box.y + box.size - (j / down) * box.size];
  const wide = box.size / (across * FINE), tall = box.size / (down * FINE);
  pen.rect(box.x, box.y, box.size, box.size, look.empty);
  for (let b = 0; b < down * FINE; b++) {
    for (let a = 0; a < across * FINE; a++) {
      const value = between(share, (a + 0.5) / FINE, (b + 0.5) / FINE);
      if (value === null) continue;
      const corners = [[a, b], [a + 1, b], [a + 1, b + 1], [a, b + 1]].map(([i, j]) => [i / FINE, j / FINE]);
      const values = corners.map(([i, j]) => between(share, i, j) ?? value), colour = paint(mix(MAPS.sequential, Math.min(1, value)));
      if (Math.max(...values) <= 1) pen.rect(box.x + a * wide, box.y + box.size - (b + 1) * tall, wide + 1, tall + 1, colour);
      else if (Math.min(...values) <= 1) pen.polygon(below(corners, values).map(place), colour);
    }
  }
  for (let k = 1; k <= levels; k++) {
    const colour = k === levels ? look.soft : k / levels < 0.55 ? "#ffffff" : "#1b1f24";
    for (const piece of isoline(share, k / levels)) pen.line(piece.map(place), colour, 0.9);
  }
}
