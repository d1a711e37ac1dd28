// The column on the right: what is under the pointer, markers, findings, latencies, who delays whom.

const LISTED = 300;

/** Rows of a definition list. */
function definitions(rows) {
  return `<dl>${rows.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join('')}</dl>`;
}

class Side {
  constructor(app) {
    this.app = app;
    this.tab = 'findings';
    this.order = 'waited_ns';
    this.box = document.getElementById('tab');
    for (const button of document.querySelectorAll('.tabs button')) {
      button.onclick = () => this.open(button.dataset.tab);
    }
    this.box.onclick = (event) => this.click(event);
  }

  open(tab) {
    this.tab = tab;
    for (const button of document.querySelectorAll('.tabs button')) {
      button.setAttribute('aria-selected', String(button.dataset.tab === tab));
    }
    this.box.innerHTML = { findings: () => this.findings(), latency: () => this.latency(), delay: () => this.delay(), about: () => this.about() }[tab]();
    this.box.scrollTop = 0;
    this.box.querySelector('[aria-current="true"]')?.scrollIntoView({ block: 'nearest' });
  }

  click(event) {
    const target = event.target.closest('[data-finding], [data-thread], [data-order]');
    if (!target) return;
    const { finding, thread, order } = target.dataset;
    if (finding) this.app.goToFinding(Number(finding));
    if (thread) this.app.chooseThread(Number(thread));
    if (order) {
      this.order = order;
      this.open(this.tab);
    }
  }

  findings() {
    const { findings, finding, model } = this.app;
    const { index } = model;
    if (findings.length === 0) {
      return '<p>No core idled while a thread that may use it waited behind another, and the recording tells of no violation.</p>';
    }
    const worst = Math.max(...findings.map((one) => one.wasted_ns ?? 0), 1);
    const listed = findings.map((one, at) => {
      const current = `data-finding="${at}" aria-current="${at === finding}"`;
      const when = `<span class="num">${instant(one.from_ns, 1e6)}</span>`;
      if (one.kind) return `<div class="finding" ${current}><b>${one.kind}</b>${when}<span class="note">${escapeHtml(one.text)}</span></div>`;
      const bar = `<span class="bar" style="width:${Math.max(1, one.wasted_ns / worst * 100)}%"></span>`;
      const cores = one.cores_max === 1 ? '1 core' : `${one.cores_max} cores`;
      return `<div class="finding" ${current}><b>${duration(one.wasted_ns)} of core time</b>${when}`
        + `<span class="note">up to ${cores} idle for ${duration(one.to_ns - one.from_ns)} (${one.cores})</span>${bar}</div>`;
    });
    const share = index.wasted_ns / (model.span * model.cores.length) * 100;
    return `<p>Cores idled for <b>${duration(index.wasted_ns)}</b> of core time (${share.toFixed(2)} %) in ${count(index.episodes)} `
      + `episodes while threads that may use them waited behind others. The largest, in order of time; <kbd>n</kbd> goes to the next.</p>${listed.join('')}`;
  }

  /** The people of a table, in its order. */
  sorted(of) {
    const value = (person) => (this.order === 'name' ? 0 : person[this.order] ?? percentile(person.latencies, Number(this.order)));
    const people = this.app.model.people.filter((person) => person.index !== 0 && of(person));
    const byName = (a, b) => a.name.localeCompare(b.name) || a.thread - b.thread;
    return people.sort((a, b) => (this.order === 'name' ? byName(a, b) : value(b) - value(a))).slice(0, LISTED);
  }

  latency() {
    const people = this.sorted((person) => person.wakeups > 0);
    if (people.length === 0) return '<p>This recording tells of no wake-ups.</p>';
    const head = [['name', 'Thread'], ['wakeups', 'Wakes'], ['0.5', 'p50'], ['0.99', 'p99'], ['latency_max_ns', 'Max']];
    const rows = people.map((person) => this.row(person, [
      count(person.wakeups), duration(percentile(person.latencies, 0.5)),
      duration(percentile(person.latencies, 0.99)), duration(person.latency_max_ns),
    ]));
    const chosen = this.app.model.person.get(this.app.selectedThread);
    const whose = chosen ? escapeHtml(`${chosen.name} ${chosen.thread}`) : 'all threads';
    return `<h3>From wake-up to core: ${whose}</h3>${this.histogram(chosen ? [chosen] : people)}${table(head, rows, this.order)}`;
  }

  row(person, cells) {
    const current = person.index === this.app.selectedThread;
    return `<tr data-thread="${person.index}" aria-current="${current}"><td>${escapeHtml(person.name)} <small>${person.thread}</small></td>`
      + `${cells.map((cell) => `<td>${cell}</td>`).join('')}</tr>`;
  }

  /** Latencies by their doubling. */
  histogram(people) {
    const bins = new Map();
    for (const person of people) {
      for (const [bound, number] of person.latencies) {
        const bin = Math.ceil(Math.log2(bound));
        bins.set(bin, (bins.get(bin) ?? 0) + number);
      }
    }
    const [low, high] = [Math.min(...bins.keys()), Math.max(...bins.keys())];
    const top = Math.max(...bins.values());
    const bars = [];
    for (let bin = low; bin <= high; bin++) {
      const number = bins.get(bin) ?? 0;
      const title = `${duration(2 ** (bin - 1))} to ${duration(2 ** bin)}: ${count(number)}`;
      bars.push(`<div style="height:${number / top * 100}%" title="${title}"></div>`);
    }
    return `<div class="bars">${bars.join('')}</div><div class="ends"><span>${duration(2 ** (low - 1))}</span><span>${duration(2 ** high)}</span></div>`;
  }

  delay() {
    const { model, selectedThread } = this.app;
    const chosen = model.person.get(selectedThread);
    const waited = this.sorted((person) => person.antagonists.length > 0);
    if (waited.length === 0) return '<p>Nobody waited while another thread ran on the same core.</p>';
    const head = [['name', 'Thread'], ['waited_ns', 'Waited'], ['ran_ns', 'Ran']];
    const rows = waited.map((person) => this.row(person, [duration(person.waited_ns), duration(person.ran_ns)]));
    const detail = chosen?.antagonists.length
      ? `<h3>Who ran while ${escapeHtml(`${chosen.name} ${chosen.thread}`)} waited</h3>${this.antagonists(chosen)}`
      : '<p>Choose a thread to see who ran on its core while it waited.</p>';
    return `${detail}<h3>Who waited</h3>${table(head, rows, this.order)}`;
  }

  antagonists(person) {
    const rows = person.antagonists.map(([by, ns]) => `<tr data-thread="${by}"><td>${escapeHtml(this.app.model.name(by))}</td>`
      + `<td>${duration(ns)}</td><td>${(ns / Math.max(1, person.waited_ns) * 100).toFixed(1)} %</td></tr>`);
    return `<table><tbody>${rows.join('')}</tbody></table>`;
  }

  about() {
    const { index, span, cores } = this.app.model;
    const { meta } = index;
    const rows = [
      ['Host', escapeHtml(meta.host)], ['Kernel', escapeHtml(meta.kernel)], ['Source', escapeHtml(meta.source)],
      ['Length', duration(span)], ['Cores', `${cores.length} on ${new Set(cores.map((core) => core.node)).size} nodes`],
      ['Events', count(index.events)], ['Threads', count(this.app.model.people.length - 1)],
      ['Migrations', count(index.moves)], ['Bad wake-ups', count(index.bad_wakeups)],
      ['Begins at', `${index.begins_ns} ns (CLOCK_MONOTONIC)`],
    ];
    if (meta.wall_offset_ns !== 0) {
      const wall = Number((BigInt(index.begins_ns) + BigInt(Math.trunc(meta.wall_offset_ns))) / 1_000_000n);
      rows.push(['Wall clock', escapeHtml(new Date(wall).toISOString())]);
    }
    const absent = meta.absent.map((one) => `<p>Not told by this source: ${escapeHtml(one)}.</p>`).join('');
    return `${definitions(rows)}${absent}${meta.hooks.length ? `<p>Hooks: ${escapeHtml(meta.hooks.join(', '))}</p>` : ''}`;
  }

  /** What is under the pointer. */
  pointed() {
    const { app } = this;
    const { pointer, view } = app;
    const box = document.getElementById('pointer');
    if (!pointer || pointer.x < GUTTER || pointer.x > GUTTER + view.width) {
      say(box, '<h3>Under the pointer</h3><dl><dd style="grid-column:1/3;white-space:normal;color:var(--faint)">Point at a plot for its values. Click a core or a thread to choose it.</dd></dl>');
      return;
    }
    const time = view.time(pointer.x);
    const rows = [['Time', instant(time, view.length / view.width / 2)]];
    const core = app.coreAt(pointer);
    if (core !== null) rows.push(...this.coreRows(core, time));
    const thread = app.threadAt(pointer);
    if (thread) rows.push(...this.threadRows(thread));
    say(box, `<h3>Under the pointer</h3>${definitions(rows)}`);
  }

  coreRows(core, time) {
    const { model, frame, view } = this.app;
    const { id, node } = model.cores[core];
    const rows = [['Core', `${id} on node ${node}`]];
    const pixel = Math.min(frame.width - 1, Math.floor((time - view.from) / view.length * frame.width));
    const at = core * frame.width + pixel;
    const state = frame.exact ? model.stateAt(core, time) : null;
    if (state) {
      const waiting = state.waiting.map((thread) => escapeHtml(model.name(thread))).join(', ');
      rows.push(['Run queue', `${count(state.size)} runnable`], ['Load', `${count(state.load)} (1024 = nice 0)`]);
      rows.push(['Running', escapeHtml(model.name(state.running))], ['Waiting', waiting || 'nobody']);
      if (state.marks & WASTED) rows.push(['Wasted', 'idle while a thread that may run here waits']);
      if (state.marks & UNKNOWN) rows.push(['State', 'not known: events lost or core off line']);
      if (this.app.options.passes) rows.push(...passesAt(frame, view, core, time).flatMap(passRows));
      return rows;
    }
    rows.push(['Run queue', `mean ${mean(frame.sizeMean[at])}, at most ${count(frame.sizeMax[at])}`]);
    rows.push(['Load', `mean ${count(frame.loadMean[at])}, at most ${count(frame.loadMax[at])}`]);
    rows.push(['Wasted', `${(frame.wasted[at] * 100).toFixed(0)} % of ${duration(view.length / frame.width)}`]);
    if (frame.lost[at] > 0) rows.push(['State', 'not known in part: events lost']);
    return rows;
  }

  threadRows(thread) {
    const person = this.app.model.person.get(thread);
    if (!person) return [];
    return [
      ['Thread', escapeHtml(`${person.name} ${person.thread}`)], ['Process', String(person.process)],
      ['Ran', duration(person.ran_ns)], ['Waited', duration(person.waited_ns)],
      ['Wake-ups', `${count(person.wakeups)}, p99 ${duration(percentile(person.latencies, 0.99))}`],
    ];
  }

  marked() {
    const { markers, model } = this.app;
    const box = document.getElementById('markers');
    box.hidden = markers.length === 0;
    const rows = markers.map((time, at) => ['AB'[at], instant(time, 1)]);
    if (markers.length === 2) {
      const delta = Math.abs(markers[1] - markers[0]);
      rows.push(['A to B', `<b>${duration(delta)}</b> (${(delta / model.span * 100).toFixed(2)} % of all)`]);
    }
    box.innerHTML = `<h3>Markers</h3>${definitions(rows)}`;
  }
}

function table(head, rows, order) {
  const heads = head.map(([key, name]) => `<th data-order="${key}">${name}${key === order ? ' ↓' : ''}</th>`);
  return `<table><thead><tr>${heads.join('')}</tr></thead><tbody>${rows.join('')}</tbody></table>`;
}

/** The bound that this share of the latencies does not reach. */
function percentile(latencies, share) {
  const total = latencies.reduce((sum, [, number]) => sum + number, 0);
  let left = Math.ceil(total * share);
  for (const [bound, number] of latencies) {
    left -= number;
    if (left <= 0) return bound;
  }
  return 0;
}
