// Heat maps: a row a core, node by node, in the colours of the palette.

/** Rows of pixels a core before they are stretched: the lowest one shows idling while overloaded. */
const BANDS = 3;

class HeatMap {
  /** `what` is `size` or `load`. */
  constructor(panel, app, what) {
    Object.assign(this, { panel, app, what, canvas: panel.querySelector('canvas') });
    this.raster = document.createElement('canvas');
    const { order, cores } = app.model;
    const nodes = order.map((core) => cores[core].node);
    /** Lines between nodes above each row. */
    this.gaps = nodes.map((node, row) => new Set(nodes.slice(0, row + 1)).size - 1);
    this.rowHeight = 6;
  }

  get rows() {
    return this.gaps.length;
  }

  get height() {
    return Math.ceil(this.top(this.rows - 1) + this.rowHeight) + 1;
  }

  /** Uses up to so many CSS pixels, with rows of whole ones where they are not tiny. */
  fit(height, tallest) {
    const free = (height - this.gaps[this.rows - 1] - 2) / this.rows;
    this.rowHeight = Math.min(tallest, free >= 2 ? Math.floor(free) : Math.max(0.25, free));
  }

  top(row) {
    return row * this.rowHeight + this.gaps[row];
  }

  /** The row at a height, or `null` between and below rows. */
  rowAt(y) {
    for (let row = 0; row < this.rows; row++) {
      if (y >= this.top(row) && y < this.top(row) + this.rowHeight) return row;
    }
    return null;
  }

  draw() {
    const drawing = fitCanvas(this.canvas, this.height);
    this.paint();
    if (this.isWhole(drawing)) this.put(drawing);
    else this.stretch(drawing);
    this.rule(drawing);
    this.label(drawing);
    this.hatch(drawing);
  }

  /** Whether each row and each column of the frame has whole pixels of the screen. */
  isWhole({ ratio }) {
    const { frame, view } = this.app;
    const tall = this.rowHeight * ratio;
    return Number.isInteger(tall) && tall >= BANDS && Number.isInteger(ratio) && frame.width === view.width * ratio;
  }

  /** Puts the pixels onto the screen as they are, node by node: stretching is slower than copying. */
  put({ context, ratio }) {
    const { frame } = this.app;
    const { pixels, rows } = this;
    const { width } = frame;
    const tall = this.rowHeight * ratio;
    const marked = Math.round(tall / BANDS);
    if (this.whole?.width !== width || this.whole.height !== rows * tall) this.whole = new ImageData(width, rows * tall);
    const whole = new Uint32Array(this.whole.data.buffer);
    for (let row = 0; row < rows; row++) {
      const [plain, mark] = [row * BANDS * width, (row * BANDS + BANDS - 1) * width];
      for (let line = 0; line < tall; line++) {
        const from = line < marked ? plain : mark;
        whole.set(pixels.subarray(from, from + width), (row * tall + line) * width);
      }
    }
    for (const [first, end] of this.nodes()) {
      const shift = Math.round(this.top(first) * ratio) - first * tall;
      context.putImageData(this.whole, GUTTER * ratio, shift, 0, first * tall, width, (end - first) * tall);
    }
  }

  /** First row and end of each node. */
  nodes() {
    const nodes = [];
    for (let first = 0, end; first < this.rows; first = end) {
      end = first + 1;
      while (end < this.rows && this.gaps[end] === this.gaps[first]) end++;
      nodes.push([first, end]);
    }
    return nodes;
  }

  /** Colours each core and pixel. */
  paint() {
    const { frame, model, colours, options } = this.app;
    const { width } = frame;
    const { raster, rows } = this;
    if (raster.width !== width || raster.height !== rows * BANDS) {
      Object.assign(raster, { width, height: rows * BANDS });
      this.image = new ImageData(width, rows * BANDS);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    const { pixels } = this;
    const values = frame[this.what + (options.max ? 'Max' : 'Mean')];
    for (let row = 0; row < rows; row++) {
      const base = model.order[row] * width;
      const band = row * BANDS * width;
      if (this.what === 'size') colours.paintSizes(values, base, base + width, pixels, band);
      else colours.paintLoads(values, base, base + width, pixels, band);
      pixels.copyWithin(band + width, band, band + width);
      pixels.copyWithin(band + 2 * width, band, band + width);
      if (!options.wasted) continue;
      for (let x = 0; x < width; x++) {
        const share = frame.wasted[base + x];
        if (share <= 0) continue;
        const mark = blend(pixels[band + x], colours.wastedPixel, Math.min(1, share));
        pixels[band + width + x] = pixels[band + 2 * width + x] = mark;
      }
    }
  }

  /** Stretches the raster onto the screen, node by node. */
  stretch({ context }) {
    const { raster } = this;
    raster.getContext('2d').putImageData(this.image, 0, 0);
    context.imageSmoothingEnabled = this.rowHeight < 1;
    for (const [first, end] of this.nodes()) {
      const box = [GUTTER, this.top(first), this.app.view.width, (end - first) * this.rowHeight];
      context.drawImage(raster, 0, first * BANDS, raster.width, (end - first) * BANDS, ...box);
    }
  }

  /** Lines between nodes and around all. */
  rule({ context }) {
    const { view } = this.app;
    context.fillStyle = ink('node');
    for (const [first] of this.nodes().slice(1)) context.fillRect(GUTTER, this.top(first) - 1, view.width, 1);
    context.strokeStyle = ink('line');
    context.lineWidth = 1;
    context.strokeRect(GUTTER - 0.5, -0.5, view.width + 1, this.height);
  }

  label({ context }) {
    const { model } = this.app;
    const selected = this.app.selectedCore;
    context.textAlign = 'right';
    for (let row = 0; row < this.rows; row++) {
      const core = model.cores[model.order[row]];
      const middle = this.top(row) + this.rowHeight / 2;
      const begins = row === 0 || this.gaps[row] !== this.gaps[row - 1];
      if (model.order[row] === selected) {
        context.fillStyle = ink('accent');
        context.fillRect(GUTTER - 4, this.top(row), 3, Math.max(2, this.rowHeight));
        context.fillText(`core ${core.id}`, GUTTER - 8, middle);
      } else if (this.rowHeight >= 12) {
        context.fillStyle = ink('faint');
        context.fillText(`core ${core.id}`, GUTTER - 8, middle);
      }
      if (begins) this.labelNode(context, row, core.node);
    }
    context.textAlign = 'left';
  }

  labelNode(context, row, node) {
    let end = row;
    while (end + 1 < this.rows && this.gaps[end + 1] === this.gaps[row]) end++;
    const middle = (this.top(row) + this.top(end) + this.rowHeight) / 2;
    if (this.top(end) + this.rowHeight - this.top(row) < 11) return;
    context.textAlign = 'left';
    context.fillStyle = ink('text');
    context.fillText(`node ${node}`, 16, middle);
    context.textAlign = 'right';
  }

  /** Hatches what could not be told. */
  hatch({ context }) {
    const { frame, model, view, colours } = this.app;
    const scale = view.width / frame.width;
    this.pattern ??= hatching(context, colours.lost);
    context.fillStyle = this.pattern;
    for (let row = 0; row < this.rows; row++) {
      const base = model.order[row] * frame.width;
      for (let x = 0; x < frame.width; x++) {
        if (frame.lost[base + x] <= 0) continue;
        let end = x + 1;
        while (end < frame.width && frame.lost[base + end] > 0) end++;
        context.fillRect(GUTTER + x * scale, this.top(row), Math.max(2, (end - x) * scale), this.rowHeight);
        x = end;
      }
    }
  }
}

/** Diagonal lines. */
function hatching(context, colour) {
  const tile = document.createElement('canvas');
  Object.assign(tile, { width: 6, height: 6 });
  const pen = tile.getContext('2d');
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}
