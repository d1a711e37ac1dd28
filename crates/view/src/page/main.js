// Everything together: one state, one frame at a time.

const THREAD_PANEL_LEAST = 6 * THREAD_ROW;

class App {
  constructor(model) {
    this.model = model;
    this.view = new View(model.span, () => this.redraw());
    this.palette = 'safe';
    this.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    this.options = { max: false, wasted: true, moves: true, bad: true, considered: false, passes: false, cause: null };
    this.selectedCore = null;
    this.selectedThread = null;
    this.markers = [];
    this.pointer = null;
    this.findings = this.listFindings();
    this.finding = -1;
    this.scheduled = false;
    /** How long each of the last frames took to draw, in milliseconds: for measurements. */
    this.frames = [];
    const panel = (id) => document.getElementById(id);
    this.minimap = new Minimap(panel('minimap'), this);
    this.axis = new Axis(panel('axis'), this);
    this.host = new HostStrips(panel('host'), this);
    this.queue = new HeatMap(panel('queue'), this, 'size');
    this.load = new HeatMap(panel('load'), this, 'load');
    this.threads = new Threads(panel('threads'), this);
    this.overlays = new Overlays(this.queue, this);
    this.lines = new Lines(panel('overlay'), this);
    this.side = new Side(this);
    this.input = new Input(this);
    this.search = new Search(this);
    this.connect();
    this.applyTheme();
    this.side.open('findings');
    this.side.pointed();
    this.fromAddress();
  }

  connect() {
    new ResizeObserver(() => this.redraw()).observe(document.getElementById('plots'));
    const actions = { palette: () => this.nextPalette(), theme: () => this.nextTheme(), help: () => this.help() };
    for (const button of document.querySelectorAll('nav button')) button.onclick = actions[button.dataset.do];
    for (const panel of document.querySelectorAll('.panel')) {
      panel.querySelector('h2').onclick = () => {
        panel.classList.toggle('closed');
        this.redraw();
      };
      panel.querySelector('.legend').onclick = (event) => {
        const option = event.target.closest('[data-option]')?.dataset.option;
        if (option) this.toggle(option);
      };
    }
    // Texts of other programs tell no loads.
    const { source } = this.model.index.meta;
    document.getElementById('load').classList.toggle('closed', ['ftrace', 'perf'].includes(source));
    document.getElementById('help').onclick = (event) => event.currentTarget.close();
    const { meta, events } = this.model.index;
    document.getElementById('facts').innerHTML = `<b>${escapeHtml(meta.host)}</b> · ${escapeHtml(meta.kernel)} · `
      + `${this.model.cores.length} cores · ${duration(this.model.span)} · ${count(events)} events`;
  }

  /** `#FROM-TO` in nanoseconds: what a report links to. */
  fromAddress() {
    const span = /^#(\d+)-(\d+)$/.exec(location.hash);
    if (span) this.view.show(Number(span[1]), Number(span[2]));
  }

  /** Episodes and the recording's own violations, in order of time. */
  listFindings() {
    const { findings, notes } = this.model.index;
    const violations = notes.filter((note) => note.kind === 'violation');
    const words = violations.map((note) => ({ ...note, from_ns: note.at_ns }));
    return [...findings, ...words].sort((a, b) => a.from_ns - b.from_ns);
  }

  redraw() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame((now) => {
      this.scheduled = false;
      const begun = performance.now();
      this.view.step(now);
      this.draw();
      this.frames.push(performance.now() - begun);
      if (this.frames.length > 1000) this.frames.shift();
      if (!this.painted) {
        this.painted = true;
        // After this frame is on the screen.
        requestAnimationFrame(() => performance.mark('quell-painted'));
      }
    });
  }

  draw() {
    const { model, view } = this;
    const plots = document.getElementById('plots');
    view.width = Math.max(50, plots.clientWidth - GUTTER - RIGHT_EDGE);
    const width = Math.min(4096, Math.round(view.width * Math.min(2, window.devicePixelRatio || 1)));
    if (this.frame?.width !== width) this.frame = new Frame(model.cores.length, width);
    this.layout(plots.clientHeight);
    model.sample(this.frame, view.from, view.to);
    this.minimap.draw();
    this.axis.draw();
    for (const panel of [this.host, this.queue, this.load, this.threads]) {
      if (!panel.panel.classList.contains('closed')) panel.draw();
    }
    if (!this.queue.panel.classList.contains('closed')) this.overlays.draw();
    this.lines.draw();
    this.side.pointed();
    this.tellArrows();
    if (model.failure) this.tellFailure();
  }

  /** Shares the height between the panels that are open. */
  layout(height) {
    const open = (panel) => !panel.panel.classList.contains('closed');
    const heads = 4 * 28 + 44 + 26 + 8;
    const free = Math.max(120, height - heads - (open(this.host) ? this.host.height : 0));
    const threads = open(this.threads) ? Math.max(THREAD_PANEL_LEAST, free * 0.2) : 0;
    const maps = Math.max(60, free - threads);
    if (open(this.queue)) this.queue.fit(open(this.load) ? maps * 0.6 : maps, 28);
    if (open(this.load)) this.load.fit(open(this.queue) ? maps - this.queue.height : maps, open(this.queue) ? 20 : 28);
    const taken = [this.queue, this.load].filter(open).reduce((sum, map) => sum + map.height, 0);
    this.threads.fit(free - taken);
  }

  /** Says how many moves are in view where they are too many to draw. */
  tellArrows() {
    const note = document.querySelector('[data-option="moves"]');
    if (!note) return;
    const { exact } = this.frame;
    const hidden = this.options.moves && (!exact || this.overlays.arrows > ARROWS);
    say(note, hidden ? 'migrations: zoom in' : 'migrations');
  }

  tellFailure() {
    const box = document.getElementById('trouble');
    box.hidden = false;
    box.textContent = this.model.failure.message;
  }

  applyTheme() {
    document.documentElement.dataset.theme = this.theme;
    inks.clear();
    this.colours = new Colours(this.palette, this.theme);
    this.queue.pattern = this.load.pattern = null;
    this.legends();
    this.redraw();
  }

  nextPalette() {
    this.palette = this.palette === 'safe' ? 'paper' : 'safe';
    this.applyTheme();
  }

  nextTheme() {
    this.theme = this.theme === 'dark' ? 'light' : 'dark';
    this.applyTheme();
  }

  legends() {
    const { colours, options } = this;
    const legend = (id, html) => { document.querySelector(`#${id} .legend`).innerHTML = html; };
    const swatch = (colour, name) => `<span><i style="background:${colour}"></i>${name}</span>`;
    const scale = (hexes, names) => `<span class="scale">${hexes.map((hex, at) => `<span><i style="background:${hex}"></i>${names[at]}</span>`).join('')}</span>`;
    const toggle = (option, name) => `<button class="toggle" data-option="${option}" aria-pressed="${options[option]}">${name}</button>`;
    const sizes = colours.queue.map((_, at) => (at + 1 < colours.queue.length ? String(at) : `${at}+`));
    const short = (edge) => (edge >= 1024 && edge % 1024 === 0 ? `${edge / 1024}k` : String(edge));
    const loads = colours.load.map((_, at) => (at < colours.loadEdges.length ? short(colours.loadEdges[at]) : 'more'));
    legend('queue', toggle('moves', 'migrations') + toggle('bad', 'bad wake-ups') + toggle('considered', 'considered cores')
      + toggle('passes', 'balancer passes')
      + toggle('wasted', `<i style="background:${colours.wasted}"></i>idle while overloaded`) + toggle('max', 'maximum')
      + `<span>threads that want the core</span>${scale(colours.queue, sizes)}`);
    legend('load', `<span>sum of weights, up to</span>${scale(colours.load, loads)}`);
    legend('threads', swatch(ink('run'), 'runs') + swatch(ink('wait'), 'waits') + '<span>sleeps where empty; longest waiters first</span>');
    legend('host', '<span>sums over all cores; scaled to the largest value in view</span>');
  }

  toggle(option) {
    this.options[option] = !this.options[option];
    this.legends();
    this.redraw();
  }

  point(pointer) {
    this.pointer = pointer;
    // The line and the words alone: the plots stay as they are.
    if (!this.frame || this.scheduled) return;
    this.lines.draw();
    this.side.pointed();
  }

  /** The top of a panel's canvas within the plots. */
  canvasTop(panel) {
    return panel.canvas.getBoundingClientRect().top - document.getElementById('plots').getBoundingClientRect().top;
  }

  coreAt({ y, target }) {
    const map = [this.queue, this.load].find((panel) => panel.canvas === target);
    const row = map ? map.rowAt(y - this.canvasTop(map)) : null;
    return row === null ? null : this.model.order[row];
  }

  threadAt({ y, target }) {
    return target === this.threads.canvas ? this.threads.threadAt(y - this.canvasTop(this.threads)) : undefined;
  }

  chooseCore(core) {
    this.selectedCore = this.selectedCore === core ? null : core;
    this.redraw();
  }

  chooseThread(thread) {
    this.selectedThread = this.selectedThread === thread ? null : thread;
    this.threads.scroll = 0;
    this.side.open(this.side.tab === 'latency' ? 'latency' : 'delay');
    this.redraw();
  }

  chooseNothing() {
    Object.assign(this, { selectedCore: null, selectedThread: null });
    this.options.cause = null;
    this.side.open(this.side.tab);
    this.redraw();
  }

  zoom(factor) {
    const inside = this.pointer && this.pointer.x > GUTTER;
    const around = inside ? this.view.time(this.pointer.x) : (this.view.from + this.view.to) / 2;
    this.view.zoom(factor, around, true);
  }

  mark() {
    const inside = this.pointer && this.pointer.x > GUTTER;
    const time = inside ? this.view.time(this.pointer.x) : (this.view.from + this.view.to) / 2;
    this.markers = this.markers.length === 2 ? [time] : [...this.markers, time];
    this.side.marked();
    this.redraw();
  }

  unmark() {
    this.markers = [];
    this.side.marked();
    this.redraw();
  }

  zoomToMarkers() {
    if (this.markers.length === 2) this.view.glideTo(Math.min(...this.markers), Math.max(...this.markers));
  }

  nextFinding(step) {
    if (this.findings.length === 0) return;
    const at = this.finding < 0 && step < 0 ? 0 : this.finding;
    this.goToFinding((at + step + this.findings.length) % this.findings.length);
  }

  goToFinding(at) {
    this.finding = at;
    const { from_ns: from, to_ns: to } = this.findings[at];
    if (from === to) this.goToInstant(from);
    else this.view.reveal(from, to);
    this.side.open('findings');
  }

  /** What is said at an instant is mostly about the time after it. */
  goToInstant(at) {
    const begins = Math.max(0, at - this.model.span / 200);
    this.view.glideTo(begins, Math.min(this.model.span, at + this.model.span / 30));
  }

  /** Goes to the first move by this cause after the middle of the view. */
  async goToCause(cause) {
    const { model, view } = this;
    this.options.cause = cause.name;
    const number = CAUSES.indexOf(cause);
    const after = (view.from + view.to) / 2;
    const [first] = model.tilesIn(after, after);
    for (let at = first; at < model.index.tiles.length; at++) {
      const { moves } = await model.loadTile(at);
      for (let move = 0; move < moves.length; move++) {
        if (moves.cause[move] !== number || moves.at[move] <= after) continue;
        const half = Math.min(view.length, 4e6) / 2;
        view.glideTo(moves.at[move] - half, moves.at[move] + half);
        return;
      }
    }
    const box = document.getElementById('trouble');
    box.textContent = `no migration by ${cause.label} after ${instant(after, 1e6)}`;
    box.hidden = false;
    setTimeout(() => { box.hidden = true; }, 2500);
  }

  help() {
    const keys = KEYS.map(([, shown, words]) => `<dt><kbd>${shown}</kbd></dt><dd>${words}</dd>`).join('');
    const read = [
      ['Run queue', 'One row a core, one block a node. The colour is the number of threads that run or wait there: the first colour is an idle core, the second a core with one thread. From the third on somebody waits.'],
      ['Idle while overloaded', 'The lower part of an idle core’s row is marked while a thread that may run on it waits behind another one elsewhere. Affinity is taken into account.'],
      ['Migrations', 'An arrow from the old core to the new one; colour and dashes tell who moved the thread. Drawn once at most 500 are in view.'],
      ['Bad wake-up', 'A black box: a thread was woken onto a busy core while an allowed one idled.'],
      ['Balancer pass', 'A triangle on the core that balanced, filled if threads were moved. Point at it for the level, the rule that ended the pass and the groups as it saw them.'],
      ['Hatched', 'Events were lost or the core was off line: nothing can be said.'],
      ['Zoomed out', 'A pixel shows the time-weighted mean or, with X, the maximum of what lies under it. Zoomed in, every change is exact.'],
    ].map(([name, words]) => `<h3>${name}</h3>${words}`).join('');
    const dialog = document.getElementById('help');
    dialog.innerHTML = `<h1>How to move, how to read</h1><div class="columns"><div><h3>Keys</h3><dl>${keys}</dl>`
      + '<h3>Mouse</h3>Wheel: zoom at the pointer. Shift and wheel: earlier, later. Drag: pan. Wheel over the names: scroll threads. Click: choose a core or a thread.</div>'
      + `<div>${read}</div></div>`;
    dialog.showModal();
  }
}

async function main() {
  const source = openSource();
  const index = JSON.parse(new TextDecoder().decode(await source.blob(0)));
  let app = null;
  const model = new Model(index, source, () => app?.redraw());
  await model.open();
  app = new App(model);
  // For scripts: measurements, and whoever wants to drive the page.
  window.quellView = app;
  await model.openPeople();
  app.side.open(app.side.tab);
}

main().catch((error) => {
  const box = document.getElementById('trouble');
  box.hidden = false;
  box.textContent = `The recording cannot be shown: ${error.message}`;
  throw error;
});
