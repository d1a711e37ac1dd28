// Passes of the load balancer: marks over the run queues, and what one saw and did in words.

/** As the trace numbers them. */
const PASS_ENTRIES = ['periodic', 'nohz', 'new-idle', 'active'];
const PASS_OUTCOMES = ['moved', 'not-designated', 'no-busiest', 'local-is-busier', 'local-is-above-average', 'as-many-idle', 'within-margin', 'not-idle', 'nothing-to-move', 'no-queue', 'pinned', 'kept'];
const GROUP_KINDS = ['has-spare', 'fully-busy', 'siblings', 'imbalanced', 'overloaded'];
const SKIPPED = ['running', 'pinned', 'warm', 'heavy'];

/** More marks than this hide each other. */
const PASSES_SHOWN = 4_000;
/** Groups in words; a pass may have 64. */
const GROUPS_SHOWN = 9;
/** So many pixels from a mark it is pointed at. */
const PASS_REACH = 5;

/** Passes of a tile: time, core, what ended it, and the groups, the own one first. */
function decodePasses(input, from) {
  const passes = [];
  let at = from;
  for (let left = input.number(); left > 0; left--) {
    at += input.number();
    const pass = { at };
    for (const name of ['core', 'level', 'entry', 'outcome', 'moved']) pass[name] = input.number();
    pass.skipped = SKIPPED.map(() => input.number());
    pass.groups = [];
    for (let groups = input.number(); groups > 0; groups--) {
      const group = { ranges: decodeRanges(input) };
      for (const name of ['sum', 'mean', 'minimum', 'queued', 'idle', 'kind']) group[name] = input.number();
      pass.groups.push(group);
    }
    passes.push(pass);
  }
  return passes;
}

/** A triangle on the core of each pass, of the chosen core or of all; filled where threads were moved. */
function drawPasses(context, app, queue, middle) {
  const { view, frame, colours, selectedCore } = app;
  const size = Math.min(4, queue.rowHeight / 2 + 1);
  let left = PASSES_SHOWN;
  context.fillStyle = context.strokeStyle = colours.considered;
  context.lineWidth = 1;
  for (const tile of frame.tiles) {
    for (const pass of tile.passes) {
      if (pass.at < view.from || pass.at > view.to || (selectedCore !== null && pass.core !== selectedCore) || left-- <= 0) continue;
      const [x, y] = [view.x(pass.at), middle(pass.core)];
      context.beginPath();
      context.moveTo(x, y - size);
      context.lineTo(x + size, y + size);
      context.lineTo(x - size, y + size);
      context.closePath();
      if (pass.moved > 0) context.fill();
      else context.stroke();
    }
  }
}

/** The passes of a core whose marks are under the pointer, those of the nearest instant. */
function passesAt(frame, view, core, time) {
  const reach = PASS_REACH * view.length / view.width;
  let [found, nearest] = [[], reach];
  for (const tile of frame.tiles) {
    for (const pass of tile.passes) {
      const distance = Math.abs(pass.at - time);
      if (pass.core !== core || distance > nearest) continue;
      if (distance < nearest || found.length === 0 || found[0].at !== pass.at) found = [];
      nearest = distance;
      found.push(pass);
    }
  }
  return found;
}

/** A pass as rows of a definition list. */
function passRows(pass) {
  const skipped = pass.skipped.map((number, at) => (number > 0 ? `${count(number)} ${SKIPPED[at]}` : '')).filter(Boolean).join(', ');
  const moved = pass.moved > 0 ? ` ${count(pass.moved)}` : '';
  const rows = [['Pass', `level ${pass.level}, ${PASS_ENTRIES[pass.entry]}: <b>${PASS_OUTCOMES[pass.outcome]}${moved}</b>`]];
  if (skipped) rows.push(['Skipped', skipped]);
  pass.groups.slice(0, GROUPS_SHOWN).forEach((group, at) => rows.push([at === 0 ? 'Own group' : 'Group', groupText(group)]));
  if (pass.groups.length > GROUPS_SHOWN) rows.push(['', `and ${pass.groups.length - GROUPS_SHOWN} more groups`]);
  return rows;
}

function groupText({ ranges, sum, mean, minimum, queued, idle, kind }) {
  const cores = ranges.map(([first, last]) => (first === last ? String(first) : `${first}-${last}`)).join(',');
  const text = `{${cores}}: sum ${count(sum)}, mean ${count(mean)}, minimum ${count(minimum)}, ${count(queued)} queued, ${count(idle)} idle, ${GROUP_KINDS[kind]}`;
  return `<span style="white-space:normal">${text}</span>`;
}
