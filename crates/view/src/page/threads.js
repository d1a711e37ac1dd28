// A row a thread: when it ran, when it waited.

const THREAD_ROW = 19;
/** A piece at least so wide, in CSS pixels, says on which core it is. */
const NAMED_PIECE = 26;

class Threads {
  constructor(panel, app) {
    Object.assign(this, { panel, app, canvas: panel.querySelector('canvas') });
    this.scroll = 0;
    this.height = 120;
  }

  /** The threads that have rows: the chosen one first, then those that waited longest. */
  get list() {
    const { model, selectedThread } = this.app;
    const rows = [...model.rows.keys()].filter((thread) => thread !== selectedThread);
    return selectedThread ? [selectedThread, ...rows] : rows;
  }

  fit(height) {
    this.height = Math.max(1, Math.floor(height / THREAD_ROW)) * THREAD_ROW;
  }

  scrollBy(rows) {
    const last = Math.max(0, this.list.length - Math.floor(this.height / THREAD_ROW));
    this.scroll = Math.max(0, Math.min(last, this.scroll + rows));
    this.app.redraw();
  }

  shown() {
    return this.list.slice(this.scroll, this.scroll + Math.ceil(this.height / THREAD_ROW));
  }

  threadAt(y) {
    return this.shown()[Math.floor(y / THREAD_ROW)];
  }

  draw() {
    const { context } = fitCanvas(this.canvas, this.height);
    const threads = this.shown();
    if (threads.length === 0) {
      context.fillStyle = ink('faint');
      const { source } = this.app.model.index.meta;
      context.fillText(source === 'wasted-cores' ? 'This recording knows no threads.' : 'No threads yet.', GUTTER, this.height / 2);
      return;
    }
    const pieces = this.collect(threads);
    this.paint(context, threads, pieces);
    this.label(context, threads, pieces);
  }

  /** Shares of running and waiting by row and pixel, and pieces wide enough for a name. */
  collect(threads) {
    const { frame, view } = this.app;
    const { width } = frame;
    // By thread: a map would be asked once for each switch in view.
    const rowOf = new Int32Array(Math.max(...threads) + 1).fill(-1);
    threads.forEach((thread, row) => { rowOf[thread] = row; });
    const shares = { run: new Float32Array(threads.length * width), wait: new Float32Array(threads.length * width), named: [] };
    const perPixel = view.length / width;
    if (frame.exact) {
      for (const tile of frame.tiles) this.collectTile(tile, rowOf, shares, perPixel);
    } else {
      threads.forEach((thread, row) => this.collectRow(thread, row, shares, perPixel));
    }
    return shares;
  }

  collectTile(tile, rowOf, shares, perPixel) {
    const { view, model } = this.app;
    const { at, value, start } = tile.running;
    for (let core = 0; core < model.cores.length; core++) {
      const end = start[core + 1];
      for (let next = lastAtMost(at, view.from, start[core], end); next < end && at[next] < view.to; next++) {
        const row = rowOf[value[next]];
        if (!(row >= 0)) continue;
        const ends = next + 1 < end ? at[next + 1] : tile.to;
        this.add(shares, 'run', row, at[next], ends, perPixel, model.cores[core].id);
      }
    }
    const { waits } = tile;
    for (let wait = 0; wait < waits.length; wait++) {
      const row = rowOf[waits.thread[wait]];
      if (!(row >= 0)) continue;
      this.add(shares, 'wait', row, waits.at[wait], waits.at[wait] + waits.span[wait], perPixel, null);
    }
  }

  add(shares, what, row, begins, ends, perPixel, core) {
    const { frame, view } = this.app;
    const from = Math.max(0, (begins - view.from) / perPixel);
    const to = Math.min(frame.width, (ends - view.from) / perPixel);
    if (to <= from) return;
    const plane = shares[what];
    const base = row * frame.width;
    const [first, last] = [Math.floor(from), Math.min(frame.width - 1, Math.floor(to))];
    for (let x = first; x <= last; x++) plane[base + x] += Math.min(to, x + 1) - Math.max(from, x);
    const scale = view.width / frame.width;
    if (core !== null && (to - from) * scale >= NAMED_PIECE) {
      shares.named.push({ row, x: GUTTER + (from + to) / 2 * scale, core });
    }
  }

  collectRow(thread, row, shares, perPixel) {
    const { model, frame, view } = this.app;
    const slots = model.rows.get(thread);
    if (!slots) return;
    const width = model.index.rows.width_ns;
    let slot = lastAtMost(slots.bucket, view.from / width, 0, slots.bucket.length);
    for (; slot < slots.bucket.length && slots.bucket[slot] * width < view.to; slot++) {
      const begins = (slots.bucket[slot] * width - view.from) / perPixel;
      const from = Math.max(0, begins);
      const to = Math.min(frame.width, begins + width / perPixel);
      for (let x = Math.floor(from); x < to; x++) {
        const part = Math.min(to, x + 1) - Math.max(from, x);
        shares.run[row * frame.width + x] += slots.run[slot] * SHARE * part;
        shares.wait[row * frame.width + x] += slots.wait[slot] * SHARE * part;
      }
    }
  }

  /** In each pixel the share of running stands at the bottom, that of waiting on top of it. */
  paint(context, threads, { run, wait }) {
    const { frame, view } = this.app;
    const scale = view.width / frame.width;
    const inner = THREAD_ROW - 4;
    const [running, waiting, line] = [ink('run'), ink('wait'), ink('line')];
    threads.forEach((_, row) => {
      const top = row * THREAD_ROW + 2;
      context.fillStyle = line;
      context.fillRect(GUTTER, top + inner + 1, view.width, 0.5);
      for (let x = 0; x < frame.width;) {
        const at = row * frame.width + x;
        const [runs, waits] = [run[at], wait[at]];
        // Neighbours that look alike are one rectangle.
        let end = x + 1;
        while (end < frame.width && run[row * frame.width + end] === runs && wait[row * frame.width + end] === waits) end++;
        const box = [GUTTER + x * scale, (end - x) * scale];
        const ran = Math.min(1, runs) * inner;
        const waited = Math.min(1, waits) * inner;
        if (ran > 0) {
          context.fillStyle = running;
          context.fillRect(box[0], top + inner - ran, box[1], ran);
        }
        if (waited > 0) {
          context.fillStyle = waiting;
          context.fillRect(box[0], top + Math.max(0, inner - ran - waited), box[1], waited);
        }
        x = end;
      }
    });
  }

  label(context, threads, { named }) {
    const { model, selectedThread } = this.app;
    threads.forEach((thread, row) => {
      context.fillStyle = thread === selectedThread ? ink('accent') : ink('text');
      context.fillText(shorten(context, model.name(thread), GUTTER - 28), 16, row * THREAD_ROW + THREAD_ROW / 2);
    });
    context.fillStyle = '#fff';
    context.textAlign = 'center';
    for (const { row, x, core } of named) context.fillText(core, x, row * THREAD_ROW + THREAD_ROW / 2);
    context.textAlign = 'left';
  }
}

/** A text that is no wider than `width`. */
function shorten(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let short = text;
  while (short && context.measureText(`${short}…`).width > width) short = short.slice(0, -1);
  return `${short}…`;
}
