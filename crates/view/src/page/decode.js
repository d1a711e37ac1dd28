// Packed blobs as typed arrays. The layouts are those of `tile.rs` and `picture.rs`.

/** Reads LEB128 numbers. */
class Unpacker {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  number() {
    const { bytes } = this;
    let byte = bytes[this.at++];
    if (byte < 0x80) return byte;
    let value = byte & 0x7f;
    let unit = 0x80;
    do {
      byte = bytes[this.at++];
      value += (byte & 0x7f) * unit;
      unit *= 0x80;
    } while (byte >= 0x80);
    return value;
  }
}

/** Names of a core's series, by the bit that says that one changed. */
const SERIES = ['size', 'load', 'running', 'marks'];

/**
 * The series of all cores, each with the cores one after the other: core c has the entries from `start[c]` up to
 * `start[c + 1]`, the first at the begin of the tile; each value holds until the next entry.
 */
function decodeSteps(from, cores, events, input) {
  const series = SERIES.map(() => ({
    at: new Float64Array(events + cores), value: new Float64Array(events + cores), start: new Int32Array(cores + 1), next: 0,
  }));
  const put = (steps, at, value) => {
    steps.at[steps.next] = at;
    steps.value[steps.next++] = value;
  };
  for (let core = 0; core < cores; core++) {
    for (const steps of series) {
      steps.start[core] = steps.next;
      put(steps, from, input.number());
    }
    let at = from;
    for (let left = input.number(); left > 0; left--) {
      at += input.number();
      const which = input.number();
      for (let bit = 0; bit < SERIES.length; bit++) if (which >> bit & 1) put(series[bit], at, input.number());
    }
  }
  return Object.fromEntries(series.map(({ at, value, start, next }, bit) => {
    start[cores] = next;
    return [SERIES[bit], { at: at.slice(0, next), value: value.slice(0, next), start }];
  }));
}

/** Rows of numbers as one array a column; `at` is kept as the difference to the row before. */
function decodeTable(input, columns, from) {
  const length = input.number();
  const table = Object.fromEntries(columns.map((name) => [name, new Float64Array(length)]));
  let last = from;
  for (let row = 0; row < length; row++) {
    for (const name of columns) {
      const value = input.number();
      table[name][row] = name === 'at' ? (last += value) : value;
    }
  }
  return { ...table, length };
}

/** An exact tile; `events` is at least the number of changes in it. */
function decodeTile(bytes, cores, events) {
  const input = new Unpacker(bytes);
  const from = input.number();
  const to = input.number();
  const tile = { from, to, ...decodeSteps(from, cores, events, input) };
  tile.waits = decodeTable(input, ['thread', 'core', 'at', 'span'], from);
  for (let wait = 0; wait < tile.waits.length; wait++) tile.waits.at[wait] -= tile.waits.span[wait];
  tile.gaps = decodeTable(input, ['core', 'since', 'span'], from);
  tile.moves = decodeTable(input, ['at', 'thread', 'from', 'to', 'cause'], from);
  tile.bad = decodeTable(input, ['at', 'thread', 'core', 'idle'], from);
  tile.considered = decodeConsidered(input, from);
  tile.passes = decodePasses(input, from);
  return tile;
}

/** Searches: `ranges[i]` lists first and last core number of each range in turn. */
function decodeConsidered(input, from) {
  const considered = [];
  let at = from;
  for (let left = input.number(); left > 0; left--) {
    at += input.number();
    const entry = { at, by: input.number(), kind: input.number() };
    entry.ranges = decodeRanges(input);
    considered.push(entry);
  }
  return considered;
}

/** The ranges of a set of cores. */
function decodeRanges(input) {
  const ranges = [];
  let core = 0;
  for (let left = input.number(); left > 0; left--) {
    const first = core + input.number();
    core = first + input.number();
    ranges.push([first, core - 1]);
  }
  return ranges;
}

/** When the threads that waited longest ran and waited: sparse buckets with shares in 255ths. */
function decodeRows(bytes) {
  const input = new Unpacker(bytes);
  const rows = new Map();
  for (let left = input.number(); left > 0; left--) {
    const thread = input.number();
    const length = input.number();
    const row = { bucket: new Float64Array(length), run: new Uint8Array(length), wait: new Uint8Array(length) };
    let bucket = 0;
    for (let slot = 0; slot < length; slot++) {
      bucket += input.number();
      const shares = input.number();
      row.bucket[slot] = bucket;
      row.run[slot] = shares >> 8;
      row.wait[slot] = shares & 0xff;
    }
    rows.set(thread, row);
  }
  return rows;
}
