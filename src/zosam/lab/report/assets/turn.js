// Turning by mouse, touch and keys: changes view.yaw, view.pitch and view.zoom; gives back the way home.
function turnable(canvas, view, repaint) {
  const { yaw, pitch, zoom } = view;
  const fingers = new Map();

  const reset = () => {
    Object.assign(view, { yaw, pitch, zoom });
    repaint();
  };
  const turn = (dx, dy) => {
    view.yaw += dx;
    view.pitch = Math.min(1.5, Math.max(0.08, view.pitch + dy));
    repaint();
  };
  const approach = (factor) => {
    const before = view.zoom;
    view.zoom = Math.min(4, Math.max(0.6, before * factor));
    repaint();
    return view.zoom !== before;
  };
  const distance = () => {
    const [a, b] = [...fingers.values()];
    return Math.hypot(a.x - b.x, a.y - b.y);
  };

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    tip.hide();
  });
  canvas.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const wide = fingers.size === 2 ? distance() : 0;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (wide) approach(distance() / wide);
    else if (fingers.size === 1) turn((event.clientX - last.x) * 0.01, (event.clientY - last.y) * 0.01);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("wheel", (event) => { // the page scrolls until the surface has been chosen by a click
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    if (approach(Math.exp(-event.deltaY * 0.0015))) event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
    if (turns) turn(...turns);
    else if (event.key === "+" || event.key === "=") approach(1.15);
    else if (event.key === "-") approach(1 / 1.15);
    else if (event.key === "0") reset();
    else return;
    event.preventDefault();
  });
  return reset;
}
