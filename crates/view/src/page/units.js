// Numbers as people read them.

/** A length of time: three significant digits and the unit that keeps them short. */
function duration(ns) {
  const size = Math.abs(ns);
  const [unit, by] = size < 1e3 ? ['ns', 1] : size < 1e6 ? ['µs', 1e3] : size < 1e9 ? ['ms', 1e6] : ['s', 1e9];
  const value = ns / by;
  const digits = unit === 'ns' ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${unit}`;
}

/** A point of time since the begin of the recording, exact to `step` nanoseconds. */
function instant(ns, step) {
  const digits = Math.max(0, Math.min(9, Math.ceil(9 - Math.log10(Math.max(1, step)))));
  return `${(ns / 1e9).toFixed(digits)} s`;
}

/** A whole number with thin gaps. */
function count(number) {
  return Math.round(number).toLocaleString('en').replaceAll(',', '\u202f');
}

/** A mean: two digits after the point where it has any. */
function mean(value) {
  return Number.isInteger(value) ? count(value) : value < 100 ? value.toFixed(2) : count(value);
}

/** The least of 1, 2, 5 × 10^n that is not below `rough`. */
function roundStep(rough) {
  const decade = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((by) => by * decade).find((step) => step >= rough);
}

/** Text for HTML: names of threads are chosen by programs. */
function escapeHtml(text) {
  return String(text).replace(/[&<>"]/g, (char) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[char]);
}

/** The index of the last entry in `sorted[from, to)` that is not above `value`; `from` where all are. */
function lastAtMost(sorted, value, from, to) {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return Math.max(from, low - 1);
}
