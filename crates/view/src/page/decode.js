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

/**
 * Steps of all cores one after the other: core c has the entries from `start[c]` up to `start[c + 1]`, the first at
 * the begin of the tile; each value holds until the next entry.
 */
function decodeSteps(from, cores, events, input) {
  const at = new Float64Array(events + cores);
  const value = new Float64Array(events + cores);
  const start = new Int32Array(cores + 1);
  let next = 0;
  for (let core = 0; core < cores; core++) {
    start[core] = next;
    const changes = input.number();
    let time = from;
    at[next] = from;
    value[next++] = input.number();
    for (let change = 0; change < changes; change++) {
      time += input.number();
      at[next] = time;
      value[next++] = input.number();
    }
  }
  start[cores] = next;
  return { at: at.slice(0, next), value: value.slice(0, next), start };
}

/** Rows of numbers as one array a column; the columns of `deltas` hold differences to the row before. */
function decodeTable(input, columns, from, deltas) {
  const rows = input.number();
  const table = columns.map(() => new Float64Array(rows));
  let last = from;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns.length; column++) {
      let value = input.number();
      if (columns[column] === 'at') value = deltas ? (last += value) : from + value;
      table[column][row] = value;
    }
  }
  return Object.fromEntries(columns.map((name, column) => [name, table[column]]).concat([['length', rows]]));
}

/** An exact tile; `events` is at least the number of changes in it. */
function decodeTile(bytes, cores, events) {
  const input = new Unpacker(bytes);
  const from = input.number();
  const to = input.number();
  const steps = () => decodeSteps(from, cores, events, input);
  const tile = { from, to, size: steps(), load: steps(), running: steps(), marks: steps() };
  tile.waits = decodeTable(input, ['thread', 'core', 'at', 'span'], from, false);
  tile.gaps = decodeTable(input, ['core', 'at', 'span'], from, false);
  tile.moves = decodeTable(input, ['at', 'thread', 'from', 'to', 'cause'], from, true);
  tile.bad = decodeTable(input, ['at', 'thread', 'core', 'idle'], from, true);
  tile.considered = decodeConsidered(input, from);
  return tile;
}

/** Searches: `ranges[i]` lists first and last core number of each range in turn. */
function decodeConsidered(input, from) {
  const considered = [];
  let at = from;
  for (let left = input.number(); left > 0; left--) {
    at += input.number();
    const entry = { at, by: input.number(), kind: input.number(), ranges: [] };
    let core = 0;
    for (let ranges = input.number(); ranges > 0; ranges--) {
      const first = core + input.number();
      core = first + input.number();
      entry.ranges.push([first, core - 1]);
    }
    considered.push(entry);
  }
  return considered;
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
