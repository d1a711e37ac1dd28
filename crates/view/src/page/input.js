// Keys, mouse, touch, and the search box.

/** What each key does: [keys, words for the help, action]. */
const KEYS = [
  [['w', '+'], 'W', 'zoom in at the pointer', (app) => app.zoom(0.6)],
  [['s', '-'], 'S', 'zoom out', (app) => app.zoom(1 / 0.6)],
  [['a', 'ArrowLeft'], 'A  ←', 'earlier', (app) => app.view.pan(-app.view.length * 0.25, true)],
  [['d', 'ArrowRight'], 'D  →', 'later', (app) => app.view.pan(app.view.length * 0.25, true)],
  [['ArrowUp'], '↑', 'threads up', (app) => app.threads.scrollBy(-1)],
  [['ArrowDown'], '↓', 'threads down', (app) => app.threads.scrollBy(1)],
  [['f', '0'], 'F', 'the whole recording', (app) => app.view.glideTo(0, app.model.span)],
  [['n'], 'N', 'next finding', (app) => app.nextFinding(1)],
  [['N', 'p'], 'Shift N', 'finding before', (app) => app.nextFinding(-1)],
  [['/'], '/', 'search', () => document.getElementById('search').focus()],
  [['m'], 'M', 'set marker A, then B', (app) => app.mark()],
  [['M'], 'Shift M', 'take the markers away', (app) => app.unmark()],
  [['z'], 'Z', 'zoom to the markers', (app) => app.zoomToMarkers()],
  [['x'], 'X', 'mean or maximum of a pixel', (app) => app.toggle('max')],
  [['i'], 'I', 'idle while overloaded', (app) => app.toggle('wasted')],
  [['g'], 'G', 'migrations', (app) => app.toggle('moves')],
  [['b'], 'B', 'bad wake-ups', (app) => app.toggle('bad')],
  [['o'], 'O', 'considered cores', (app) => app.toggle('considered')],
  [['l'], 'L', 'passes of the load balancer', (app) => app.toggle('passes')],
  [['c'], 'C', 'other colours', (app) => app.nextPalette()],
  [['t'], 'T', 'light or dark', (app) => app.nextTheme()],
  [['?', 'h'], '?', 'this help', (app) => app.help()],
  [['Escape'], 'Esc', 'choose nothing', (app) => app.chooseNothing()],
];

/** How far a notch of the wheel zooms. */
const WHEEL = 1.0015;

class Input {
  constructor(app) {
    this.app = app;
    this.plots = document.getElementById('plots');
    this.touches = new Map();
    this.drag = null;
    document.addEventListener('keydown', (event) => this.key(event));
    this.plots.addEventListener('wheel', (event) => this.wheel(event), { passive: false });
    this.plots.addEventListener('pointerdown', (event) => this.down(event));
    this.plots.addEventListener('pointermove', (event) => this.move(event));
    this.plots.addEventListener('pointerup', (event) => this.up(event));
    this.plots.addEventListener('pointercancel', (event) => this.up(event));
    this.plots.addEventListener('pointerleave', () => app.point(null));
    this.plots.addEventListener('dblclick', (event) => this.inPlot(event) && app.zoom(0.3));
  }

  key(event) {
    const typing = event.target instanceof HTMLInputElement;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.getElementById('help').open) return;
    const key = event.shiftKey ? event.key : event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const found = KEYS.find(([keys]) => keys.includes(key)) ?? KEYS.find(([keys]) => keys.includes(key.toLowerCase()));
    if (!found) return;
    event.preventDefault();
    found[3](this.app);
  }

  /** Where an event is, from the corner of the plots. */
  place(event) {
    const box = this.plots.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  inPlot(event) {
    return this.place(event).x >= GUTTER;
  }

  wheel(event) {
    event.preventDefault();
    const { app } = this;
    const { x } = this.place(event);
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      app.view.pan((event.deltaX || event.deltaY) / app.view.width * app.view.length);
    } else if (x < GUTTER) {
      app.threads.scrollBy(Math.sign(event.deltaY) * 3);
    } else {
      app.view.zoom(WHEEL ** event.deltaY, app.view.time(x));
    }
  }

  down(event) {
    if (event.target.closest('h2, button')) return;
    const { app } = this;
    const place = this.place(event);
    this.plots.setPointerCapture(event.pointerId);
    this.touches.set(event.pointerId, place);
    if (event.target.id === 'minimap') {
      this.drag = { minimap: true };
      this.centre(place.x);
    } else {
      this.drag = { from: [app.view.from, app.view.to], x: place.x, y: place.y, moved: false };
    }
  }

  move(event) {
    const { app, drag } = this;
    const place = this.place(event);
    app.point({ ...place, target: this.targetAt(event) });
    if (!this.touches.has(event.pointerId)) return;
    const before = [...this.touches.values()];
    this.touches.set(event.pointerId, place);
    if (this.touches.size === 2) this.pinch(before, [...this.touches.values()]);
    else if (drag?.minimap) this.centre(place.x);
    else if (drag) this.pull(drag, place);
  }

  /** The canvas under the pointer; a captured pointer has the plots as its target. */
  targetAt(event) {
    return document.elementFromPoint(event.clientX, event.clientY);
  }

  pull(drag, place) {
    const { view } = this.app;
    drag.moved ||= Math.abs(place.x - drag.x) > 3;
    if (!drag.moved) return;
    const by = (drag.x - place.x) / view.width * (drag.from[1] - drag.from[0]);
    view.show(drag.from[0] + by, drag.from[1] + by);
  }

  pinch(before, after) {
    const { view } = this.app;
    const apart = ([a, b]) => Math.max(8, Math.abs(a.x - b.x));
    const middle = ([a, b]) => (a.x + b.x) / 2;
    view.pan((middle(before) - middle(after)) / view.width * view.length);
    view.zoom(apart(before) / apart(after), view.time(middle(after)));
    this.drag = null;
  }

  up(event) {
    const { app, drag } = this;
    this.touches.delete(event.pointerId);
    this.drag = null;
    if (!drag || drag.minimap || drag.moved || event.type === 'pointercancel') return;
    const pointer = { ...this.place(event), target: this.targetAt(event) };
    const core = app.coreAt(pointer);
    const thread = app.threadAt(pointer);
    if (core !== null) app.chooseCore(core);
    if (thread) app.chooseThread(thread);
  }

  /** The middle of the view goes where the minimap was pressed. */
  centre(x) {
    const { view, minimap } = this.app;
    const middle = minimap.time(x);
    view.show(middle - view.length / 2, middle + view.length / 2);
  }
}

/** Finds threads, findings, words of the recording, and causes of moves. */
class Search {
  constructor(app) {
    this.app = app;
    this.input = document.getElementById('search');
    this.list = document.getElementById('hits');
    this.hits = [];
    this.chosen = 0;
    this.input.addEventListener('input', () => this.find());
    this.input.addEventListener('focus', () => this.find());
    this.input.addEventListener('blur', () => { this.list.hidden = true; });
    this.input.addEventListener('keydown', (event) => this.key(event));
    // Pressed rather than clicked: the input must not lose its focus before.
    this.list.addEventListener('pointerdown', (event) => {
      const at = event.target.closest('li')?.dataset.at;
      if (at !== undefined) this.take(Number(at));
      event.preventDefault();
    });
  }

  find() {
    const words = this.input.value.trim().toLowerCase();
    this.hits = words ? this.matches(words).slice(0, 40) : [];
    this.chosen = 0;
    this.show(words);
  }

  matches(words) {
    const { app } = this;
    const hits = [];
    const has = (text) => text.toLowerCase().includes(words);
    app.findings.forEach((finding, at) => {
      const text = finding.text ?? `idle while overloaded: ${duration(finding.wasted_ns)} of core time, cores ${finding.cores}`;
      if (has(text) || has(finding.kind ?? '')) {
        hits.push({ kind: finding.kind ?? 'finding', text: `${instant(finding.from_ns, 1e6)}  ${text}`, go: () => app.goToFinding(at), rank: finding.kind === 'violation' ? 0 : 1 });
      }
    });
    for (const person of app.model.people) {
      const text = `${person.name} ${person.thread}`;
      if (person.index !== 0 && has(text)) hits.push({ kind: 'thread', text, go: () => app.chooseThread(person.index), rank: 0 });
    }
    for (const note of app.model.index.notes) {
      if (note.kind === 'decision' && has(note.text)) {
        hits.push({ kind: note.kind, text: `${instant(note.at_ns, 1e6)}  ${note.text}`, go: () => app.goToInstant(note.at_ns), rank: 1 });
      }
    }
    for (const cause of CAUSES) {
      if (has(cause.label) || has(cause.name) || has('migration')) {
        hits.push({ kind: 'cause', text: `next migration by ${cause.label}`, go: () => app.goToCause(cause), rank: 2 });
      }
    }
    return hits.sort((a, b) => a.rank - b.rank);
  }

  show(words) {
    this.list.hidden = !words;
    const items = this.hits.map(({ kind, text }, at) => `<li data-at="${at}" aria-selected="${at === this.chosen}">`
      + `<span>${kind}</span><span>${escapeHtml(text)}</span></li>`);
    this.list.innerHTML = items.join('') || '<li><span></span><span>Nothing of that name. Try a thread, “violation”, or a cause such as “periodic”.</span></li>';
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (steps[event.key] && this.hits.length > 0) {
      this.chosen = (this.chosen + steps[event.key] + this.hits.length) % this.hits.length;
      this.show('again');
      this.list.children[this.chosen].scrollIntoView({ block: 'nearest' });
      event.preventDefault();
    }
    if (event.key === 'Enter') this.take(this.chosen);
    if (event.key === 'Escape') this.input.blur();
  }

  take(at) {
    const hit = this.hits[at];
    if (!hit) return;
    this.input.blur();
    hit.go();
  }
}
