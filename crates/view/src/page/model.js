// What the recording holds, and what of it lies under each pixel.

const WASTED = 1;
const UNKNOWN = 2 | 4;
/** The share of a pixel that a byte of a grid stands for. */
const SHARE = 1 / 255;
/** Events up to which a frame is drawn from exact tiles. */
const EXACT_EVENTS = 1_000_000;
/** Unpacked tiles that are kept: more than a frame of exact events needs. */
const TILES_KEPT = 96;

const expLoad = Float32Array.from({ length: 256 }, (_, code) => 2 ** (code / 12) - 1);
const expLatency = Float32Array.from({ length: 256 }, (_, code) => 2 ** (code / 6) - 1);

/** What lies under the pixels of a view: per core `width` entries. Reused from frame to frame. */
class Frame {
  constructor(cores, width) {
    this.width = width;
    const plane = () => new Float32Array(cores * width);
    Object.assign(this, { sizeMax: plane(), sizeMean: plane(), loadMax: plane(), loadMean: plane() });
    Object.assign(this, { wasted: plane(), lost: plane() });
    const line = () => new Float32Array(width);
    Object.assign(this, { moves: line(), bad: line(), latency: line() });
    /** The tiles that this frame is exact in. */
    this.tiles = [];
    this.exact = false;
  }

  /** Forgets what lies in the columns from `from` up to `to`. */
  clear(from, to) {
    const cores = this.sizeMax.length / this.width;
    for (const plane of [this.sizeMax, this.sizeMean, this.loadMax, this.loadMean, this.wasted, this.lost]) {
      for (let core = 0; core < cores; core++) plane.fill(0, core * this.width + from, core * this.width + to);
    }
    for (const line of [this.moves, this.bad]) line.fill(0, from, to);
  }
}

class Model {
  constructor(index, source, changed) {
    this.index = index;
    this.source = source;
    /** Called when something arrived. */
    this.changed = changed;
    this.span = index.span_ns;
    this.cores = index.meta.topology;
    /** Rows of heat maps: positions of cores, node by node. */
    this.order = this.cores.map((_, at) => at).sort((a, b) => this.cores[a].node - this.cores[b].node || a - b);
    this.rowOf = new Int32Array(this.cores.length);
    this.order.forEach((core, row) => { this.rowOf[core] = row; });
    this.positionOf = new Map(this.cores.map((core, at) => [core.id, at]));
    this.levels = index.levels.map((level) => ({ ...level, parts: [] }));
    this.tiles = new Map();
    this.pending = new Set();
    this.people = [];
    this.person = new Map();
    this.rows = new Map();
    this.failure = null;
  }

  /** Reads what the first picture needs. */
  async open() {
    const first = this.levels[0];
    const parts = Math.ceil(first.buckets / first.per_blob);
    await Promise.all(Array.from({ length: parts }, (_, part) => this.loadPart(first, part)));
  }

  /** Reads names and rows. */
  async openPeople() {
    const { people, rows } = this.index;
    const [text, packed] = await Promise.all([this.source.blob(people), this.source.blob(rows.blob)]);
    this.people = JSON.parse(new TextDecoder().decode(text));
    this.person = new Map(this.people.map((person) => [person.index, person]));
    this.rows = decodeRows(packed);
    this.changed();
  }

  name(thread) {
    if (thread === 0) return 'idle';
    const person = this.person.get(thread);
    return person ? `${person.name} ${person.thread}` : `thread #${thread}`;
  }

  async loadPart(level, part) {
    const bytes = await this.source.blob(level.blob + part);
    const from = part * level.per_blob;
    level.parts[part] = { from, length: Math.min(level.per_blob, level.buckets - from), bytes };
  }

  tileEnd(at) {
    const next = this.index.tiles[at + 1];
    return next ? next.from_ns : this.span;
  }

  /** First and last tile that touch a span. */
  tilesIn(from, to) {
    const begins = (this.begins ??= Float64Array.from(this.index.tiles, (tile) => tile.from_ns));
    const first = lastAtMost(begins, from, 0, begins.length);
    return [first, lastAtMost(begins, to, first, begins.length)];
  }

  /** Asks for something once; `work` reads it. */
  request(key, work) {
    if (this.pending.has(key) || this.failure) return;
    this.pending.add(key);
    work().then(() => this.changed(), (error) => {
      this.failure = error;
      this.changed();
    }).finally(() => this.pending.delete(key));
  }

  /** An exact tile, or `undefined` until it has arrived. */
  tile(at) {
    const kept = this.tiles.get(at);
    if (kept) {
      // The one used last is the last to go.
      this.tiles.delete(at);
      this.tiles.set(at, kept);
      return kept;
    }
    // Few at a time: one that is far from view by then would only be in the way.
    if (this.pending.size < 4) this.request(`tile ${at}`, () => this.loadTile(at));
    return undefined;
  }

  async loadTile(at) {
    if (this.tiles.has(at)) return this.tiles.get(at);
    const { blob, events } = this.index.tiles[at];
    const tile = decodeTile(await this.source.blob(blob), this.cores.length, events);
    this.tiles.set(at, tile);
    if (this.tiles.size > TILES_KEPT) this.tiles.delete(this.tiles.keys().next().value);
    return tile;
  }

  /** Fills a frame with what lies between two times. */
  sample(frame, from, to) {
    const perPixel = (to - from) / frame.width;
    const [first, last] = this.tilesIn(from, to);
    let events = 0;
    for (let at = first; at <= last; at++) events += this.index.tiles[at].events;
    const finest = this.levels[this.levels.length - 1];
    const exact = events <= EXACT_EVENTS && perPixel < finest.width_ns * 2;
    const tiles = [];
    if (exact) for (let at = first; at <= last; at++) tiles.push(this.tile(at));
    frame.tiles = tiles.filter((tile) => tile);
    frame.exact = exact && frame.tiles.length === tiles.length;
    frame.clear(0, frame.width);
    this.sampleLevel(frame, this.readyLevel(from, to, perPixel), from, perPixel);
    if (!exact) return;
    this.sampleTiles(frame, from, perPixel);
    if (frame.exact) [first - 1, last + 1].filter((at) => this.index.tiles[at]).forEach((at) => this.tile(at));
  }

  /** The coarsest level that has a bucket for each pixel, or the next one that is at hand. */
  readyLevel(from, to, perPixel) {
    const wide = (level) => level.width_ns > perPixel;
    let at = this.levels.findIndex((level) => !wide(level));
    if (at < 0) at = this.levels.length - 1;
    for (; at > 0; at--) {
      const level = this.levels[at];
      const span = level.per_blob * level.width_ns;
      const parts = [];
      for (let part = Math.max(0, Math.floor(from / span)); part * span < Math.min(to, this.span); part++) parts.push(part);
      const missing = parts.filter((part) => !level.parts[part]);
      if (missing.length === 0) break;
      missing.forEach((part) => this.request(`level ${at} ${part}`, () => this.loadPart(level, part)));
    }
    return this.levels[at];
  }

  /** Of a frame that tiles will fill only what they do not know. */
  sampleLevel(frame, level, from, perPixel) {
    const { width } = frame;
    /** The buckets under each pixel: from the first up to the end. */
    const firsts = new Int32Array(width).fill(level.buckets);
    const ends = new Int32Array(width).fill(level.buckets);
    for (let x = 0; x < width; x++) {
      const time = from + x * perPixel;
      if (time >= this.span) break;
      firsts[x] = Math.min(level.buckets - 1, Math.floor(time / level.width_ns));
      ends[x] = Math.min(level.buckets, Math.max(firsts[x] + 1, Math.floor((time + perPixel) / level.width_ns)));
    }
    for (const part of level.parts) {
      if (!part) continue;
      let left = 0;
      while (left < width && ends[left] <= part.from) left++;
      let right = left;
      while (right < width && firsts[right] < part.from + part.length) right++;
      if (!frame.exact) this.sampleCores(frame, part, firsts, ends, left, right);
      this.sampleHost(frame, part, firsts, ends, left, right);
    }
  }

  /** The pixels from `left` up to `right` of each core, core by core as they lie in memory. */
  sampleCores(frame, { from, length, bytes }, firsts, ends, left, right) {
    const { width, sizeMax, sizeMean, loadMax, loadMean, wasted, lost } = frame;
    const plane = this.cores.length * length;
    for (let core = 0; core < this.cores.length; core++) {
      const row = core * length - from;
      for (let x = left, to = core * width + left; x < right; x++, to++) {
        const share = 1 / (ends[x] - firsts[x]);
        const end = row + Math.min(ends[x], from + length);
        for (let at = row + Math.max(firsts[x], from); at < end; at++) {
          const size = bytes[at];
          if (size > sizeMax[to]) sizeMax[to] = size;
          sizeMean[to] += bytes[at + plane] / 16 * share;
          const load = expLoad[bytes[at + 2 * plane]];
          if (load > loadMax[to]) loadMax[to] = load;
          loadMean[to] += expLoad[bytes[at + 3 * plane]] * share;
          wasted[to] += bytes[at + 4 * plane] * SHARE * share;
          lost[to] += bytes[at + 5 * plane] * SHARE * share;
        }
      }
    }
  }

  sampleHost(frame, { from, length, bytes }, firsts, ends, left, right) {
    const { moves, bad, latency } = frame;
    const host = 6 * this.cores.length * length - from;
    for (let x = left; x < right; x++) {
      const end = host + Math.min(ends[x], from + length);
      if (firsts[x] >= from) latency[x] = 0;
      for (let at = host + Math.max(firsts[x], from); at < end; at++) {
        moves[x] += Math.round(expLoad[bytes[at]]);
        bad[x] += Math.round(expLoad[bytes[at + length]]);
        latency[x] = Math.max(latency[x], expLatency[bytes[at + 2 * length]]);
      }
    }
  }

  /** Overwrites what exact tiles know, a run of neighbours at a time. */
  sampleTiles(frame, from, perPixel) {
    const { tiles } = frame;
    for (let first = 0, next; first < tiles.length; first = next) {
      next = first + 1;
      while (next < tiles.length && tiles[next].from === tiles[next - 1].to) next++;
      const run = tiles.slice(first, next);
      const begins = (run[0].from - from) / perPixel;
      const ends = (run[run.length - 1].to - from) / perPixel;
      const left = Math.max(0, run[0].from === 0 ? Math.floor(begins) : Math.ceil(begins));
      const right = Math.min(frame.width, run[run.length - 1].to >= this.span ? Math.ceil(ends) : Math.floor(ends));
      if (right <= left) continue;
      frame.clear(left, right);
      for (const tile of run) this.sampleTile(frame, tile, from, perPixel, left, right);
    }
  }

  sampleTile(frame, tile, from, perPixel, left, right) {
    const { width } = frame;
    for (let core = 0; core < this.cores.length; core++) {
      const base = core * width;
      const plot = (steps, to, read) => spread(steps, core, tile.to, from, perPixel, left, right, to, base, read);
      plot(tile.size, [frame.sizeMean, frame.sizeMax], (value) => value);
      plot(tile.load, [frame.loadMean, frame.loadMax], (value) => value);
      plot(tile.marks, [frame.wasted, null], (marks) => marks & WASTED);
      plot(tile.marks, [frame.lost, null], (marks) => (marks & UNKNOWN ? 1 : 0));
    }
    const { gaps, moves, bad } = tile;
    for (let at = 0; at < gaps.length; at++) {
      const begins = tile.from + gaps.since[at];
      const x = Math.floor((begins - from) / perPixel);
      const end = Math.ceil((begins + gaps.span[at] - from) / perPixel);
      for (let to = Math.max(left, x); to < Math.min(right, end); to++) frame.lost[gaps.core[at] * width + to] = 1;
    }
    for (const [table, line] of [[moves, frame.moves], [bad, frame.bad]]) {
      for (let at = 0; at < table.length; at++) {
        const x = Math.floor((table.at[at] - from) / perPixel);
        if (x >= left && x < right) line[x] += 1;
      }
    }
  }

  /** What is known of a core at a time, where an exact tile is at hand. */
  stateAt(core, time) {
    const [at] = this.tilesIn(time, time);
    const tile = this.tiles.get(at);
    if (!tile || time < 0 || time > this.span) return null;
    const value = ({ at: times, value: values, start }) => values[lastAtMost(times, time, start[core], start[core + 1])];
    const state = { size: value(tile.size), load: value(tile.load), running: value(tile.running), marks: value(tile.marks) };
    state.waiting = [];
    const { waits } = tile;
    for (let wait = 0; wait < waits.length; wait++) {
      const begins = waits.at[wait];
      if (waits.core[wait] === core && begins <= time && time < begins + waits.span[wait]) state.waiting.push(waits.thread[wait]);
    }
    return state;
  }
}

/**
 * Adds the time-weighted values of a core's steps to the pixels from `left` up to `right`, and their maximum where
 * `max` is given. Sums are in pixels: what holds through a whole pixel adds its value.
 */
function spread(steps, core, tileEnd, from, perPixel, left, right, [sum, max], base, read) {
  const { at, value, start } = steps;
  const end = start[core + 1];
  let next = lastAtMost(at, from + left * perPixel, start[core], end);
  const until = from + right * perPixel;
  for (; next < end && at[next] < until; next++) {
    const now = read(value[next]);
    if (now === 0) continue;
    const begins = Math.max(left, (at[next] - from) / perPixel);
    const ends = Math.min(right, ((next + 1 < end ? at[next + 1] : tileEnd) - from) / perPixel);
    if (ends <= begins) continue;
    const first = Math.floor(begins);
    const last = Math.min(right - 1, Math.floor(ends));
    if (first === last) {
      sum[base + first] += now * (ends - begins);
    } else {
      sum[base + first] += now * (first + 1 - begins);
      for (let x = first + 1; x < last; x++) sum[base + x] += now;
      sum[base + last] += now * (ends - last);
    }
    if (max) for (let x = first; x <= last; x++) if (now > max[base + x]) max[base + x] = now;
  }
}
