// Which part of the time is shown, and how it moves.

/** The space to the left of every plot, in CSS pixels, for names. */
const GUTTER = 132;
const RIGHT_EDGE = 14;
const GLIDE_MS = 130;
/** The least time across the screen. */
const NARROWEST_NS = 200;

class View {
  constructor(span, redraw) {
    this.span = span;
    this.redraw = redraw;
    this.from = 0;
    this.to = span;
    /** CSS pixels of the plots, without the gutter. */
    this.width = 100;
    this.glide = null;
  }

  get length() {
    return this.to - this.from;
  }

  x(time) {
    return GUTTER + (time - this.from) / this.length * this.width;
  }

  time(x) {
    return this.from + (x - GUTTER) / this.width * this.length;
  }

  /** Shows this span now, as far as it lies in the recording. */
  show(from, to) {
    this.glide = null;
    this.set(from, to);
  }

  set(from, to) {
    const length = Math.min(this.span, Math.max(NARROWEST_NS, to - from));
    this.from = Math.max(0, Math.min(this.span - length, from));
    this.to = this.from + length;
    this.redraw();
  }

  /** Goes there in a few frames, so that the eye can follow. */
  glideTo(from, to) {
    this.glide = { begun: performance.now(), old: [this.from, this.to], new: [from, to] };
    this.redraw();
  }

  /** Takes the next step of a glide. */
  step(now) {
    if (!this.glide) return;
    const { begun, old, new: target } = this.glide;
    const part = Math.min(1, Math.max(0, (now - begun) / GLIDE_MS));
    const eased = 1 - (1 - part) ** 3;
    const glide = part < 1 ? this.glide : null;
    this.set(old[0] + (target[0] - old[0]) * eased, old[1] + (target[1] - old[1]) * eased);
    this.glide = glide;
  }

  /** Where a glide is to end. */
  get goal() {
    return this.glide ? this.glide.new : [this.from, this.to];
  }

  zoom(factor, around, gliding = false) {
    const [from, to] = gliding ? this.goal : [this.from, this.to];
    const span = [around - (around - from) * factor, around + (to - around) * factor];
    const length = Math.min(this.span, Math.max(NARROWEST_NS, span[1] - span[0]));
    const begins = Math.max(0, Math.min(this.span - length, around - (around - from) * length / (to - from)));
    if (gliding) this.glideTo(begins, begins + length);
    else this.show(begins, begins + length);
  }

  pan(by, gliding = false) {
    const [from, to] = gliding ? this.goal : [this.from, this.to];
    const begins = Math.max(0, Math.min(this.span - (to - from), from + by));
    if (gliding) this.glideTo(begins, begins + (to - from));
    else this.show(begins, begins + (to - from));
  }

  /** Shows a span with some room around it. */
  reveal(from, to) {
    const room = Math.max((to - from) * 0.6, 20_000);
    const length = Math.min(this.span, to - from + 2 * room);
    const begins = Math.max(0, Math.min(this.span - length, from - room));
    this.glideTo(begins, begins + length);
  }
}

/** A canvas that has as many pixels as the screen shows. */
function fitCanvas(canvas, height) {
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  if (height !== undefined) canvas.style.height = `${height}px`;
  const box = canvas.getBoundingClientRect();
  const [width, tall] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== width || canvas.height !== tall) Object.assign(canvas, { width, height: tall });
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, box.width, box.height);
  context.font = '11px system-ui, "DejaVu Sans", sans-serif';
  context.textBaseline = 'middle';
  return { context, width: box.width, height: box.height, ratio };
}

const inks = new Map();

/** A colour of the style sheet; asking the browser for it is slow. */
function ink(name) {
  if (!inks.has(name)) inks.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return inks.get(name);
}

const said = new WeakMap();

/** Has an element say something, if it does not say that already: each new text lays out the page again. */
function say(element, html) {
  if (said.get(element) === html) return;
  said.set(element, html);
  element.innerHTML = html;
}
