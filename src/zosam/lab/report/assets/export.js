// Downloads: numbers as CSV, drawings as SVG and PNG, always in the light theme, on white.
function csvField(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const isNumber = value.trim() !== "" && Number.isFinite(Number(value));
  const safe = /^[=+\-@\t\r]/.test(value) && !isNumber ? `'${value}` : value; // no spreadsheet shall run a name
  return /[",\r\n]/.test(safe) || safe !== safe.trim() ? `"${safe.replaceAll('"', '""')}"` : safe;
}
const csv = (rows) => rows.map((row) => `${row.map(csvField).join(",")}\r\n`).join("");

function save(name, suffix, blob) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: `${slug(name)}.${suffix}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function inLight(make) {
  const root = document.documentElement, now = root.dataset.theme;
  root.dataset.theme = "light";
  try {
    return make();
  } finally {
    root.dataset.theme = now;
  }
}

function picture(view, width) {
  const root = inLight(() => (view.picture || view.draw)(width));
  for (const node of root.querySelectorAll("[tabindex], [role]")) ["tabindex", "role", "aria-pressed"].forEach((key) => node.removeAttribute(key));
  root.prepend(svg("title", {}, root.getAttribute("aria-label")), svg("rect", { width: "100%", height: "100%", fill: "#ffffff" }));
  // XML has no place for control characters and halves of pairs
  return new XMLSerializer().serializeToString(root).replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]|\p{Cs}/gu, "");
}

function savePng(name, text) {
  const image = new Image();
  image.onload = () => {
    const canvas = el("canvas", { width: image.width * 2, height: image.height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, "png", blob), "image/png");
  };
  image.onerror = () => alert("The picture could not be made; the SVG holds the same drawing.");
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

function downloads(name, view, width) {
  const numbers = button("CSV", () => save(name, "csv", new Blob([csv(view.rows())], { type: "text/csv" })), { "aria-label": `Download the numbers of ${name} as CSV` });
  if (!view.draw) return el("div", { class: "downloads" }, numbers);
  const drawing = (label, action) => button(label, () => action(picture(view, width())), { "aria-label": `Download ${name} as ${label}` });
  return el("div", { class: "downloads" },
    drawing("PNG", (text) => savePng(name, text)),
    drawing("SVG", (text) => save(name, "svg", new Blob([text], { type: "image/svg+xml" }))),
    numbers);
}
