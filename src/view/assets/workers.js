'use strict';
// The samplers of runs on other hosts. Their figures change every second, so the table is made once and its cells are renewed:
// whoever has scrolled it, or reads along in it, stays where they are.
const Workers = (() => {
  const { el } = Dom;

  const BAD = ['dropped', 'gone', 'silent'];

  const behind = (worker) => {
    if (worker.version === null) return '–';
    return worker.staleness > 0 ? `${worker.version}, ${Format.count(worker.staleness)} behind` : String(worker.version);
  };
  const signed = (seconds) => `${seconds > 0 ? '+' : ''}${Format.number(Number(seconds.toFixed(2)))} s`;
  const fetched = (worker) => (worker.fetched_bytes > 0 ? `${Format.bytes(worker.fetched_bytes)} in ${Format.duration(worker.fetch_s)}` : '–');

  /** Heading, what it means, and what stands below it. */
  const COLUMNS = [
    ['State', 'What it is at, and why it is not wanted', (worker) => (worker.reason ? `${worker.state}: ${worker.reason}` : worker.state)],
    ['Tokens/s', 'Completion tokens per second, over the last half minute or so', (worker) => Format.count(worker.tokens_per_s)],
    ['Busy', 'Share of its time that it spent generating', (worker) => `${Format.count(100 * worker.busy_share)} %`],
    ['Version', 'The weights that its new tokens are sampled from', behind],
    ['Tokens', 'Completion tokens that it has generated', (worker) => Format.count(worker.tokens)],
    ['Completions', 'Completions of it that count', (worker) => Format.count(worker.completions)],
    ['Twice', 'Completions that it made although another’s came first', (worker) => Format.count(worker.twice)],
    ['Leases', 'Leases that it has now', (worker) => Format.count(worker.leases)],
    ['Ran out', 'Leases that were taken back because nothing came of them in time', (worker) => Format.count(worker.expired)],
    ['Failures', 'Calls of it that could not be taken, and versions that it refused', (worker) => Format.count(worker.failures)],
    ['Fetched', 'Bytes of weights from the store, and how long it took', fetched],
    ['Swap', 'How long its last version took from being heard of to being in use', (worker) => Format.duration(worker.swap_s)],
    ['Clock', 'Its clock against that of the run', (worker) => signed(worker.clock_off_s)],
    ['Last call', 'How long ago it was heard of', (worker) => Format.duration(worker.last_call_s)],
    ['There for', 'Since its first call', (worker) => Format.duration(worker.joined_s)],
    ['Kernels', 'What it computes with', (worker) => worker.class || '–'],
  ];

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  /** A row. Names are anybody's, and so are reasons. */
  const makeRow = () => {
    const name = el('th', { scope: 'row', dir: 'auto' });
    const cells = COLUMNS.map(() => el('td', { dir: 'auto' }));
    const update = (worker) => {
      say(name, Format.visible(worker.name || worker.number));
      name.title = worker.number;
      COLUMNS.forEach(([, , text], at) => say(cells[at], Format.visible(text(worker))));
      cells[0].classList.toggle('bad', BAD.includes(worker.state));
    };
    return { root: el('tr', {}, name, ...cells), update };
  };

  const atWork = (worker) => worker.state === 'sampling' || worker.state === 'waiting';

  const reasons = (refusals) => {
    const words = Object.keys(refusals).map(Format.visible);
    return words.length > 0 ? ` (${words.join(', ')})` : '';
  };

  /** What all of them are and did, in sentences. */
  const summary = (found) => {
    const working = found.workers.filter(atWork);
    const rate = working.reduce((sum, worker) => sum + worker.tokens_per_s, 0);
    const parts = [`${Format.count(working.length)} at work, ${Format.count(rate)} tokens/s`];
    if (found.verified + found.disputed > 0) parts.push(`${Format.count(found.verified)} prompts verified, ${Format.count(found.disputed)} disputed`);
    if (found.store_bytes_out > 0) parts.push(`${Format.bytes(found.store_bytes_out)} written to the store`);
    if (found.refused_calls > 0) parts.push(`${Format.count(found.refused_calls)} calls refused${reasons(found.refusals)}`);
    if (found.check_trouble) parts.push(`could not be checked: ${Format.visible(found.check_trouble)}`);
    if (found.store_trouble) parts.push(`weights do not get into the store: ${Format.visible(found.store_trouble)}`);
    const at = new Date(Math.min(1000 * found.written, 8e15)).toISOString().replace('T', ' ').slice(0, 19);
    return `${parts.join('; ')}.${found.current && !Source.isReport ? '' : ` As of ${at} UTC.`}`;
  };

  const alone = (found) => {
    if (!(found.current && !Source.isReport && found.alone_s > 0)) return '';
    return `No worker has been at work for ${Format.duration(found.alone_s)}, and the run waits: ${Format.visible(found.join)}`;
  };

  /** The part of one run. */
  const ofRun = () => {
    const title = el('h2', { dir: 'auto' });
    const [problem, words] = [el('p', { class: 'problem' }), el('p', { class: 'soft' })];
    const head = el('tr', {}, el('th', { text: 'Worker', scope: 'col' }), ...COLUMNS.map(([text, what]) => el('th', { text, title: what, scope: 'col' })));
    const body = el('tbody');
    const table = el('div', { class: 'card scroll', tabindex: '0', role: 'region' }, el('table', { class: 'workers' }, el('thead', {}, head), body));
    const rows = new Map();
    const update = (run, several) => {
      const found = run.workers;
      say(title, several ? `Workers: ${Format.visible(run.name)}` : 'Workers');
      table.setAttribute('aria-label', title.textContent);
      say(words, summary(found));
      say(problem, alone(found));
      problem.hidden = problem.textContent === '';
      table.hidden = found.workers.length === 0;
      for (const worker of found.workers) {
        if (!rows.has(worker.number)) rows.set(worker.number, makeRow());
        rows.get(worker.number).update(worker);
      }
      const numbers = found.workers.map((worker) => worker.number);
      for (const number of rows.keys()) if (!numbers.includes(number)) rows.delete(number);
      const wanted = numbers.map((number) => rows.get(number).root);
      if (wanted.length !== body.children.length || wanted.some((row, at) => body.children[at] !== row)) body.replaceChildren(...wanted);
    };
    return { root: el('section', {}, title, problem, words, table), update };
  };

  /** The tables of the runs that have workers. */
  const create = () => {
    const root = el('div');
    const parts = new Map();
    const update = (shown) => {
      const runs = shown.filter((run) => run.workers);
      for (const run of runs) {
        if (!parts.has(run.id)) parts.set(run.id, ofRun());
        parts.get(run.id).update(run, shown.length > 1);
      }
      const wanted = runs.map((run) => parts.get(run.id).root);
      if (wanted.length !== root.children.length || wanted.some((part, at) => root.children[at] !== part)) root.replaceChildren(...wanted);
    };
    return { root, update };
  };

  return { create };
})();
