// The whole recording in a strip, the axis of time, and what the host does as a whole.

const MINIMAP_TOP = 6;
const STRIP_HEIGHT = 27;

/** Sums over all cores of the coarsest level: waiting threads and wasted cores a bucket. */
function summarise(model) {
  const [level] = model.levels;
  const waiting = new Float32Array(level.buckets);
  const wasted = new Float32Array(level.buckets);
  for (const { from, length, bytes } of level.parts) {
    const plane = model.cores.length * length;
    for (let core = 0; core < model.cores.length; core++) {
      for (let at = 0; at < length; at++) {
        const cell = core * length + at;
        waiting[from + at] += Math.max(0, bytes[plane + cell] / 16 - 1);
        wasted[from + at] += bytes[4 * plane + cell] * SHARE;
      }
    }
  }
  return { width: level.width_ns, waiting, wasted };
}

/** An area under values at equal distances. */
function area(context, values, left, bottom, width, height, top, colour) {
  if (!(top > 0)) return;
  context.fillStyle = colour;
  context.beginPath();
  context.moveTo(left, bottom);
  for (let at = 0; at < values.length; at++) {
    const y = bottom - Math.min(1, values[at] / top) * height;
    context.lineTo(left + at / values.length * width, y);
    context.lineTo(left + (at + 1) / values.length * width, y);
  }
  context.lineTo(left + width, bottom);
  context.fill();
}

/** The largest value of each of `width` equal pieces. */
function squeeze(values, width) {
  const out = new Float32Array(width);
  for (let at = 0; at < values.length; at++) {
    const to = Math.floor(at / values.length * width);
    if (values[at] > out[to]) out[to] = values[at];
  }
  return out;
}

function largest(values) {
  let max = 0;
  for (const value of values) if (value > max) max = value;
  return max;
}

class Minimap {
  constructor(canvas, app) {
    Object.assign(this, { canvas, app });
  }

  x(time) {
    return GUTTER + time / this.app.model.span * this.app.view.width;
  }

  time(x) {
    return (x - GUTTER) / this.app.view.width * this.app.model.span;
  }

  draw() {
    const { model, view } = this.app;
    const { context, height } = fitCanvas(this.canvas);
    this.summary ??= summarise(model);
    const inner = height - MINIMAP_TOP - 1;
    const bottom = height - 1;
    const columns = Math.round(view.width);
    const waiting = squeeze(this.summary.waiting, columns);
    const wasted = squeeze(this.summary.wasted, columns);
    const top = Math.max(1, largest(waiting), largest(wasted));
    context.save();
    context.globalAlpha = 0.55;
    area(context, waiting, GUTTER, bottom, view.width, inner, top, ink('wait'));
    context.globalAlpha = 0.9;
    area(context, wasted, GUTTER, bottom, view.width, inner, top, ink('wasted'));
    context.restore();
    context.fillStyle = ink('wasted');
    for (const note of model.index.notes) {
      if (note.kind === 'violation') context.fillRect(this.x(note.at_ns) - 1, 0, 2, MINIMAP_TOP - 1);
    }
    context.fillStyle = ink('faint');
    context.fillText('whole recording', 16, height / 2 - 7);
    context.fillText(duration(model.span), 16, height / 2 + 8);
    const [left, right] = [this.x(view.from), Math.max(this.x(view.to), this.x(view.from) + 2)];
    context.fillStyle = ink('shade');
    context.fillRect(GUTTER, 0, left - GUTTER, height);
    context.fillRect(right, 0, GUTTER + view.width - right, height);
    context.strokeStyle = ink('accent');
    context.lineWidth = 1.5;
    context.strokeRect(left, 1, right - left, height - 2);
  }
}

class Axis {
  constructor(canvas, app) {
    Object.assign(this, { canvas, app });
  }

  draw() {
    const { view } = this.app;
    const { context, height } = fitCanvas(this.canvas);
    const step = roundStep(view.length / view.width * 110);
    context.strokeStyle = ink('line');
    context.fillStyle = ink('faint');
    context.textAlign = 'center';
    context.beginPath();
    for (let tick = Math.ceil(view.from / step); tick * step <= view.to; tick++) {
      const x = view.x(tick * step);
      context.moveTo(x, height - 5);
      context.lineTo(x, height);
      const label = instant(tick * step, step);
      const half = context.measureText(label).width / 2;
      if (x + half < GUTTER + view.width) context.fillText(label, Math.max(x, GUTTER + half), height / 2 - 2);
    }
    context.moveTo(GUTTER, height - 0.5);
    context.lineTo(GUTTER + view.width, height - 0.5);
    context.stroke();
    context.textAlign = 'left';
    context.fillText(`${duration(view.length)} shown`, 16, height / 2 - 2);
  }
}

/** What the host does as a whole, as areas over time. */
class HostStrips {
  constructor(panel, app) {
    Object.assign(this, { panel, app, canvas: panel.querySelector('canvas') });
  }

  get height() {
    return 4 * STRIP_HEIGHT + 4;
  }

  /** Threads that wait behind another one, and cores wasted, by pixel. */
  sums() {
    const { frame, model } = this.app;
    const waiting = new Float32Array(frame.width);
    const wasted = new Float32Array(frame.width);
    for (let core = 0; core < model.cores.length; core++) {
      const base = core * frame.width;
      for (let x = 0; x < frame.width; x++) {
        waiting[x] += Math.max(0, frame.sizeMean[base + x] - 1);
        wasted[x] += frame.wasted[base + x];
      }
    }
    return { waiting, wasted };
  }

  draw() {
    const { frame, view } = this.app;
    const { context } = fitCanvas(this.canvas, this.height);
    const { waiting, wasted } = this.sums();
    const strips = [
      ['waiting threads', waiting, mean, ink('wait')],
      ['wasted cores', wasted, mean, ink('wasted')],
      ['wake-up latency', frame.latency, duration, ink('run')],
      ['migrations', frame.moves, count, ink('faint')],
    ];
    strips.forEach(([name, values, format, colour], at) => {
      const bottom = (at + 1) * STRIP_HEIGHT;
      const top = largest(values);
      area(context, values, GUTTER, bottom, view.width, STRIP_HEIGHT - 6, top, colour);
      context.fillStyle = ink('text');
      context.fillText(name, 16, bottom - 16);
      context.fillStyle = ink('faint');
      context.fillText(top > 0 ? `max ${format(top)}` : 'none', 16, bottom - 4);
      context.fillStyle = ink('line');
      context.fillRect(GUTTER, bottom, view.width, 1);
    });
  }
}
