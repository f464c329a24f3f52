'use strict';
// Where data comes from: the server of `tandem ui`, or the report itself, which holds its data.
const Source = (() => {
  const embedded = document.getElementById('tandem-data');
  const held = embedded && JSON.parse(embedded.textContent);

  const get = async (path) => {
    const response = await fetch(`/api/${path}`).catch(() => { throw new Error('the server of this page does not answer'); });
    if (response.ok) return response.json();
    const text = await response.text();
    let said;
    try {
      said = JSON.parse(text).error;
    } catch {
      said = text.trim();
    }
    throw new Error(said || `the server answers ${response.status}`);
  };

  /** Something the report holds. A step or completion that it does not hold is only in the run's own files. */
  const keep = (value) => {
    if (value === undefined) throw new Error('the report holds samples of some steps only; tandem ui shows all of them');
    return value;
  };
  const of = (run) => held.runs[run];

  const live = {
    charts: () => get('charts'),
    runs: () => get('runs'),
    overview: (run) => get(`runs/${run}/overview`),
    curves: (run, { steps, evaluations, generation, also }) =>
      get(`runs/${run}/curves?steps=${steps}&evaluations=${evaluations}${generation === undefined ? '' : `&generation=${generation}`}`
        + `${also.length === 0 ? '' : `&also=${encodeURIComponent(JSON.stringify(also))}`}`),
    notices: (run) => get(`runs/${run}/notices`),
    comparisons: (run) => get(`runs/${run}/comparisons`),
    workers: (run) => get(`runs/${run}/workers`),
    settings: (run) => get(`runs/${run}/settings`),
    pairs: (run) => get(`runs/${run}/pairs`),
    steps: (run) => get(`runs/${run}/steps`),
    step: (run, step) => get(`runs/${run}/steps/${step}`),
    sample: (run, step, position, sample) => get(`runs/${run}/steps/${step}/${position}/${sample}`),
    search: (run, text) => get(`runs/${run}/search?q=${encodeURIComponent(text)}`),
    /** Calls `changed(run, parts)` as files grow, and `connected(yes)` as the server comes and goes. */
    follow: (changed, connected) => {
      let events;
      const close = () => {
        events?.close();
        events = undefined;
        connected(false);
      };
      const open = () => {
        if (events || document.hidden) return;
        events = new EventSource('/api/events');
        events.addEventListener('open', () => connected(true));
        events.addEventListener('error', () => {
          // The browser tries again by itself, but not after a refusal.
          if (events?.readyState !== EventSource.CLOSED) return connected(false);
          close();
          setTimeout(open, 5000);
        });
        events.addEventListener('message', (event) => {
          const { run, parts } = JSON.parse(event.data);
          changed(run, parts);
        });
      };
      // A browser has six connections to a server. Pages that nobody sees hold none.
      document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
      open();
    },
  };

  const report = {
    charts: async () => held.charts,
    runs: async () => held.runs.map((run) => run.overview),
    curves: async (run) => of(run).curves,
    notices: async (run) => of(run).notices,
    comparisons: async (run) => of(run).comparisons,
    workers: async (run) => of(run).workers,
    settings: async (run) => of(run).settings,
    pairs: async (run) => of(run).pairs,
    steps: async (run) => Object.keys(of(run).steps).map(Number),
    step: async (run, step) => keep(of(run).steps[step]),
    sample: async (run, step, position, sample) => keep(of(run).samples[`${step}/${position}/${sample}`]),
  };

  return { ...(held ? report : live), isReport: Boolean(held) };
})();

// The figures of a run: columns that grow.
class Table {
  constructor() {
    this.step = [];
    this.columns = {};
  }

  /** Adds a part, or takes it in place of everything if it begins anew. */
  add({ from, step, columns }) {
    // What is there already, or is no longer true, gives way.
    for (const column of [this.step, ...Object.values(this.columns)]) column.length = Math.min(column.length, from);
    const known = this.step.length;
    for (const [key, values] of Object.entries(columns)) {
      const column = (this.columns[key] ??= new Array(known).fill(null));
      for (const value of values) column.push(value);
    }
    for (const step_ of step) this.step.push(step_);
    for (const column of Object.values(this.columns)) while (column.length < this.step.length) column.push(null);
  }

  column(key) {
    return this.columns[key] ?? [];
  }
}

class Figures {
  /** Of a run; `also` are the metrics that are drawn although no chart shows them, now and later. */
  constructor(run, also) {
    this.run = run;
    this.also = also;
    this.known = '';
    /** Metrics that no chart shows. */
    this.others = [];
    this.steps = new Table();
    this.evaluations = new Table();
    this.times = [];
  }

  /** Reads what is new. One reading at a time: two would get the same news. */
  refresh() {
    this.reading = (this.reading ?? Promise.resolve()).catch(() => {}).then(() => this.read());
    return this.reading;
  }

  async read() {
    const { steps, evaluations, generation } = this;
    const also = [...this.also];
    // Of a metric that is asked for now, the earlier steps are missing, too.
    const known = this.known === also.join() ? steps.step.length : 0;
    const news = await Source.curves(this.run, { steps: known, evaluations: evaluations.step.length, generation, also });
    this.known = also.join();
    this.generation = news.generation;
    this.others = news.others;
    steps.add(news.steps);
    evaluations.add(news.evaluations);
    // Seconds of training up to the end of each step.
    let time = 0;
    this.times = steps.column('step_time').map((seconds) => (time += seconds ?? 0));
  }

  /** Where records are on an axis, `step` or `time`. */
  places(table, axis) {
    if (axis === 'step') return table.step;
    if (table === this.steps) return this.times;
    let at = 0;
    return table.step.map((step) => {
      while (at < this.steps.step.length && this.steps.step[at] <= step) at += 1;
      return at === 0 ? 0 : this.times[at - 1];
    });
  }
}
