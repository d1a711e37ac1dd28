// Colours of cells as 32-bit pixels, by palette and theme.

/** `#rrggbb` as a little-endian pixel. */
function pixel(hex, alpha = 255) {
  const rgb = parseInt(hex.slice(1), 16);
  return ((alpha << 24) | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
}

/** Between two pixels. */
function blend(from, to, part) {
  let mixed = 0xff000000;
  for (let shift = 0; shift < 24; shift += 8) {
    const a = (from >> shift) & 0xff;
    mixed |= Math.round(a + (((to >> shift) & 0xff) - a) * part) << shift;
  }
  return mixed >>> 0;
}

/** Steps between two sizes whose colours are mixed beforehand. */
const SIZE_STEPS = 16;

class Colours {
  constructor(palette, theme) {
    const set = PALETTES[palette];
    Object.assign(this, set[theme], { name: set.name, loadEdges: set.loadEdges });
    const sizes = this.queue.map((hex) => pixel(hex));
    this.sizes = new Uint32Array(sizes.length * SIZE_STEPS + 1);
    for (let at = 0; at < this.sizes.length; at++) {
      const below = Math.min(sizes.length - 1, Math.floor(at / SIZE_STEPS));
      const above = Math.min(sizes.length - 1, below + 1);
      this.sizes[at] = blend(sizes[below], sizes[above], (at % SIZE_STEPS) / SIZE_STEPS);
    }
    this.loads = Uint32Array.from(this.load, (hex) => pixel(hex));
    this.wastedPixel = pixel(this.wasted);
    this.lostPixel = pixel(this.lost);
  }

  /** The pixels of sizes, which may be means: of the values from `from` up to `to`. */
  paintSizes(values, from, to, pixels, at) {
    const { sizes } = this;
    for (let next = from; next < to; next++) {
      pixels[at++] = sizes[Math.min(sizes.length - 1, Math.round(values[next] * SIZE_STEPS))];
    }
  }

  /** The pixels of loads. */
  paintLoads(values, from, to, pixels, at) {
    const { loads, loadEdges: edges } = this;
    for (let next = from; next < to; next++) {
      let bin = 0;
      while (bin < edges.length && values[next] > edges[bin]) bin++;
      pixels[at++] = loads[bin];
    }
  }
}

/** How moves are drawn, by cause: the kinds that the paper draws look as they do there. */
const CAUSES = [
  { name: 'wakeup', label: 'wake-up', colour: '#0080ff', dash: [] },
  { name: 'fork', label: 'fork', colour: '#1a9850', dash: [] },
  { name: 'exec', label: 'exec', colour: '#1a9850', dash: [4, 2] },
  { name: 'new-idle', label: 'new idle', colour: '#e600a8', dash: [1.5, 2.5] },
  { name: 'periodic', label: 'periodic', colour: '#2430d8', dash: [6, 3] },
  { name: 'active', label: 'active', colour: '#2430d8', dash: [] },
  { name: 'affinity', label: 'affinity', colour: '#7a5c00', dash: [] },
  { name: 'numa', label: 'NUMA', colour: '#00837b', dash: [] },
  { name: 'realtime', label: 'real-time', colour: '#c00000', dash: [] },
  { name: 'hotplug', label: 'hotplug', colour: '#666666', dash: [2, 2] },
  { name: 'unknown', label: 'cause unknown', colour: '#777777', dash: [] },
];

const SEARCHES = ['idle sibling', 'idlest group', 'group statistics', 'busiest queue'];
