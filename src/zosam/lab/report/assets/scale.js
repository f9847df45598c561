// From numbers to places, ticks and colours. A null is a gap; on a log scale so is everything that is not positive.
const drawable = (value, log) => value !== null && value !== undefined && !(log && value <= 0);

function extent(values, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!drawable(value, log)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [log ? 0.1 : 0, 1] : [low, high];
}

// The values without those that lie far from all others.
function usual(values) {
  const all = [...values].sort((a, b) => a - b), at = (share) => all[Math.round(share * (all.length - 1))];
  const far = 4 * (at(0.75) - at(0.25)) + 1;
  return all.filter((v) => v >= at(0.25) - far && v <= at(0.75) + far);
}

// A little air around the values, so that no line runs along the edge.
function roomy([low, high], log, share = 0.05) {
  if (log) return roomy([Math.log10(low), Math.log10(high)], false, share).map((v) => 10 ** v);
  const air = (high - low || Math.abs(high) || 1) * share;
  return [low - air, high + air];
}

// No axis goes on where no value can be, as beyond 100 %.
const upTo = (most, [low, high]) => [low, Math.min(high, most ?? Infinity)];

function scale([low, high], [from, to], log) {
  const f = log ? Math.log10 : (v) => v;
  return (value) => from + ((f(value) - f(low)) / (f(high) - f(low) || 1)) * (to - from);
}

const superscript = (k) => String(k).replace("-", "⁻").replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);

function ticks([low, high], count, log, whole) {
  if (log) return logTicks([low, high], count);
  const rough = Math.max((high - low) / Math.max(1, count), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const huge = Math.max(Math.abs(low), Math.abs(high)) >= 1e7 || step < 1e-5;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    const at = i * step;
    const text = huge ? show(at) : at.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    found.push({ at, text: text.replace(/^-(?=0(\.0*)?$)/, "").replace("-", "−") });
  }
  return found;
}

function logTicks([low, high], count) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const label = (m, k) => (Math.abs(k) <= 3 ? show(m * 10 ** k) : `${m === 1 ? "" : `${m}·`}10${superscript(k)}`);
  const found = [];
  if (last - first >= 2) {
    const jump = Math.ceil((last - first + 1) / Math.max(2, count));
    for (let k = first; k <= last; k += jump) found.push({ at: 10 ** k, text: label(1, k) });
    return found;
  }
  for (let k = first - 1; k <= last; k++) {
    for (const m of [1, 2, 5]) {
      const at = m * 10 ** k;
      if (at >= low && at <= high) found.push({ at, text: label(m, k) });
    }
  }
  return found.length > 1 ? found : ticks([low, high], count);
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const MAPS = { sequential: DATA.maps.sequential.map(rgb), diverging: DATA.maps.diverging.map(rgb) };

function mix(map, share) {
  const place = Math.min(1, Math.max(0, share)) * (map.length - 1);
  const i = Math.min(map.length - 2, Math.floor(place));
  return map[i].map((c, k) => Math.round(c + (map[i + 1][k] - c) * (place - i)));
}
const paint = (channels) => `rgb(${channels.join(",")})`;
const isDark = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b < 140;

// Values on both sides of zero get a map with zero in its middle; all others one that rises.
function colours(values) {
  const [low, high] = extent(values);
  const wide = Math.max(-low, high);
  const domain = low < 0 && high > 0 ? [-wide, wide] : [low, high];
  const map = low < 0 && high > 0 ? MAPS.diverging : MAPS.sequential;
  const share = scale(domain, [0, 1]);
  return { domain, map, of: (value) => mix(map, domain[0] === domain[1] ? 0.5 : share(value)) };
}
