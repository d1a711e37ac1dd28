// What is drawn over the run queues: moves, bad wake-ups, considered cores, passes of the balancer; and the lines over all panels.

/** More arrows than this hide each other. */
const ARROWS = 500;
const BAD = 3_000;
const SEARCHES_SHOWN = 4_000;

/** Rows of a table of instants within a span. */
function within(table, from, to) {
  if (table.length === 0) return [0, 0];
  let first = lastAtMost(table.at, from, 0, table.length);
  if (table.at[first] < from) first++;
  let end = lastAtMost(table.at, to, first, table.length);
  if (end < table.length && table.at[end] <= to) end++;
  return [first, end];
}

class Overlays {
  constructor(queue, app) {
    Object.assign(this, { queue, app });
    /** Arrows in view; more than are drawn are a number alone. */
    this.arrows = 0;
  }

  draw() {
    const { app, queue } = this;
    const context = queue.canvas.getContext('2d');
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, app.view.width, queue.height);
    context.clip();
    if (app.options.considered) this.drawConsidered(context);
    if (app.options.passes) drawPasses(context, app, queue, (core) => this.middle(core));
    if (app.options.moves) this.drawMoves(context);
    if (app.options.bad) this.drawBad(context);
    context.restore();
  }

  middle(core) {
    return this.queue.top(this.app.model.rowOf[core]) + this.queue.rowHeight / 2;
  }

  eachInstant(name, visit) {
    const { frame, view } = this.app;
    for (const tile of frame.tiles) {
      const table = tile[name];
      const [first, end] = within(table, view.from, view.to);
      for (let at = first; at < end; at++) visit(table, at);
    }
  }

  drawMoves(context) {
    const { view, frame, options } = this.app;
    this.arrows = 0;
    for (const tile of frame.tiles) {
      const [first, end] = within(tile.moves, view.from, view.to);
      this.arrows += end - first;
    }
    if (this.arrows > ARROWS) return;
    this.eachInstant('moves', (moves, at) => {
      const cause = CAUSES[moves.cause[at]];
      if (options.cause && options.cause !== cause.name) return;
      this.arrow(context, view.x(moves.at[at]), this.middle(moves.from[at]), this.middle(moves.to[at]), cause);
    });
    context.setLineDash([]);
  }

  arrow(context, x, from, to, { colour, dash }) {
    const down = Math.sign(to - from);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.25;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, from);
    context.lineTo(x, to - down * 4);
    context.stroke();
    context.beginPath();
    context.moveTo(x, to);
    context.lineTo(x - 3, to - down * 5);
    context.lineTo(x + 3, to - down * 5);
    context.fill();
    context.beginPath();
    context.arc(x, from, 1.8, 0, 7);
    context.fill();
  }

  /** A box with a core of magenta, as in the paper. */
  drawBad(context) {
    const { view } = this.app;
    let left = BAD;
    this.eachInstant('bad', (bad, at) => {
      if (left-- <= 0) return;
      const [x, y] = [view.x(bad.at[at]), this.middle(bad.core[at])];
      context.fillStyle = '#000';
      context.fillRect(x - 3.5, y - 3.5, 7, 7);
      context.fillStyle = '#ff00ff';
      context.fillRect(x - 1.75, y - 1.75, 3.5, 3.5);
    });
  }

  /** The cores that searches on behalf of the chosen core, or of any, looked at. */
  drawConsidered(context) {
    const { view, frame, model, colours, selectedCore } = this.app;
    const height = this.queue.rowHeight;
    let left = SEARCHES_SHOWN;
    for (const tile of frame.tiles) {
      for (const { at, by, kind, ranges } of tile.considered) {
        if (at < view.from || at > view.to || (selectedCore !== null && by !== selectedCore) || left-- <= 0) continue;
        const x = view.x(at);
        context.globalAlpha = kind & 8 ? 0.85 : 0.5;
        context.fillStyle = colours.considered;
        for (const [first, last] of ranges) {
          for (let id = first; id <= last; id++) {
            const core = model.positionOf.get(id);
            if (core !== undefined) context.fillRect(x - 1, this.queue.top(model.rowOf[core]), 2, Math.max(1, height - 1));
          }
        }
        context.globalAlpha = 1;
        context.beginPath();
        context.arc(x, this.middle(by), Math.min(4, height / 2 + 1), 0, 7);
        context.fill();
      }
    }
  }
}

/** The pointer's line, markers and the span between them. */
class Lines {
  constructor(canvas, app) {
    Object.assign(this, { canvas, app });
  }

  draw() {
    const { app } = this;
    const { view, markers } = app;
    const { context, width, height } = fitCanvas(this.canvas);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 44, view.width, height);
    context.clip();
    if (markers.length === 2) {
      const [left, right] = markers.map((time) => view.x(time)).sort((a, b) => a - b);
      context.fillStyle = ink('shade');
      context.fillRect(left, 70, right - left, height);
    }
    if (app.pointer && app.pointer.x > GUTTER && app.pointer.x < GUTTER + view.width) {
      context.fillStyle = ink('faint');
      context.globalAlpha = 0.6;
      context.fillRect(app.pointer.x, 44, 1, height);
      context.globalAlpha = 1;
    }
    context.restore();
    markers.forEach((time, at) => this.marker(context, view.x(time), 'AB'[at], width, height));
  }

  marker(context, x, name, width, height) {
    if (x < GUTTER - 1 || x > width) return;
    context.fillStyle = ink('accent');
    context.fillRect(x - 0.5, 56, 1.5, height);
    context.beginPath();
    context.arc(x, 56, 8, 0, 7);
    context.fill();
    context.fillStyle = ink('paper');
    context.textAlign = 'center';
    context.fillText(name, x, 56.5);
    context.textAlign = 'left';
  }
}
