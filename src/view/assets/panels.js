'use strict';
// What stands about the curves: figures, notices and options.
const Panels = (() => {
  const { el } = Dom;

  const mean = (values) => {
    const finite = values.filter((value) => value !== null && value !== undefined);
    return finite.length > 0 ? finite.reduce((sum, value) => sum + value, 0) / finite.length : undefined;
  };

  /** Means over a tenth of the records, five at most: single steps are noisy. */
  const change = (values) => {
    const size = Math.min(Math.max(Math.floor(values.length / 10), 1), 5);
    const [first, last] = [mean(values.slice(0, size)), mean(values.slice(-size))];
    return first === undefined || last === undefined ? undefined : `${Format.number(first)} → ${Format.number(last)}`;
  };

  // A line breaks at the arrow, not within a share.
  const share = (value, error) => `${Format.number(100 * value)}${error ? `\u00a0±\u00a0${Format.number(Number((196 * error).toPrecision(2)))}` : ''}\u00a0%`;

  const tilesOf = (run) => {
    const { steps, evaluations, times } = run.figures;
    const tokens = steps.column('completions/num_tokens').reduce((sum, value) => sum + (value ?? 0), 0);
    const accuracy = evaluations.column('eval_accuracy');
    const error = Object.entries(evaluations.columns).find(([name]) => name.startsWith('avg_stderr@'))?.[1] ?? [];
    const worst = steps.column('mismatch_kl').reduce((most, value) => (value !== null && value > most ? value : most), -Infinity);
    const ends = accuracy.length > 0 ? `${share(accuracy[0], error[0])} → ${share(accuracy.at(-1), error.at(-1))}` : undefined;
    return [
      ['steps', Format.count(steps.step.at(-1) ?? 0)], ['time in steps', Format.duration(times.at(-1) ?? 0)],
      ['reward', change(steps.column('reward'))], ['evaluated accuracy', ends],
      ['completion length', change(steps.column('completions/mean_length'))],
      ['tokens/s', times.at(-1) > 0 ? Format.number(tokens / times.at(-1)) : undefined],
      ['largest mismatch_kl', Number.isFinite(worst) ? Format.number(worst) : undefined],
    ].filter(([, value]) => value !== undefined);
  };

  /** The most important figures; arrows go from the first to the last steps. */
  const tiles = (shown) => {
    if (shown.length === 1) {
      return el('div', { class: 'tiles' }, ...tilesOf(shown[0]).map(([name, value]) =>
        el('div', { class: 'tile' }, el('b', { text: value }), el('span', { text: name }))));
    }
    const all = shown.map((run) => new Map(tilesOf(run)));
    const names = [...new Set(all.flatMap((map) => [...map.keys()]))];
    return el('div', { class: 'card scroll' }, el('table', { class: 'figures' },
      el('thead', {}, el('tr', {}, el('th', { text: 'Run', scope: 'col' }), ...names.map((name) => el('th', { text: name, scope: 'col' })))),
      el('tbody', {}, ...shown.map((run, at) => el('tr', {}, el('th', { scope: 'row', dir: 'auto', text: Format.visible(run.name) }),
        ...names.map((name) => el('td', { text: all[at].get(name) ?? '–' })))))));
  };

  const notice = ({ step, text, remedy }, run) => el('li', {},
    el('span', { class: 'soft', text: `${run}${step > 0 ? `step ${step}` : 'before step 1'}` }),
    el('b', { dir: 'auto', text: Format.visible(text) }), el('p', { dir: 'auto', text: Format.visible(remedy) }));

  /** What the runs say of themselves. */
  const notices = (shown) => {
    const several = shown.length > 1;
    const name = (run) => (several ? `${Format.visible(run.name)}, ` : '');
    const vain = shown.filter((run) => run.notices?.in_vain).map((run) => el('p', { class: 'vain', dir: 'auto', text: `${name(run)}${Format.visible(run.notices.in_vain)}` }));
    const items = shown.flatMap((run) => (run.notices?.notices ?? []).map((one) => notice(one, name(run))));
    if (vain.length + items.length === 0) return el('div');
    return el('section', {}, el('h2', { text: 'Notices' }), ...vain, items.length > 0 ? el('ul', { class: 'card notices' }, ...items) : undefined);
  };

  /** What `tandem compare` has said of models of the runs. */
  const comparisons = (shown) => {
    const all = new Map(shown.flatMap((run) => run.comparisons ?? []).map((one) => [JSON.stringify(one), one]));
    if (all.size === 0) return el('div');
    const short = (path) => Format.visible(String(path).split('/').slice(-3).join('/'));
    const item = (one) => el('li', {},
      el('span', { class: 'soft', dir: 'auto', text: `${short(one.a)} → ${short(one.b)}` }),
      ...(one.sentences ?? []).map((sentence) => el('p', { dir: 'auto', text: Format.visible(sentence) })));
    return el('section', {}, el('h2', { text: 'Comparisons' }), el('ul', { class: 'card notices' }, ...[...all.values()].map(item)));
  };

  /** Options, side by side; where the runs differ, they are marked. */
  const settingsTable = (shown, only) => {
    const keys = [...new Set(shown.flatMap((run) => run.settings.options.map((one) => one.key)))];
    const rows = keys.map((name) => {
      const ones = shown.map((run) => run.settings.options.find((one) => one.key === name));
      const differs = ones.some((one) => one?.value !== ones[0]?.value);
      return { name, ones, differs, chosen: ones.some((one) => one?.chosen) };
    });
    const several = shown.length > 1;
    const kept = rows.filter((row) => !only || (several ? row.differs : row.chosen));
    const mark = (row) => (row.differs ? '≠ ' : '');
    const problems = shown.filter((run) => run.settings.problem).map((run) =>
      el('p', { class: 'problem', dir: 'auto', text: Format.visible(`${run.name}: ${run.settings.problem}`) }));
    const empty = several ? 'All options of these runs are equal.' : 'Every option has its default.';
    return el('div', {}, ...problems,
      kept.length === 0 ? (problems.length === 0 ? el('p', { text: empty }) : undefined) : el('div', { class: 'card scroll' }, el('table', { class: 'settings' },
        el('thead', {}, el('tr', {}, el('th', { text: 'Option', scope: 'col' }), ...shown.map((run) => el('th', { scope: 'col', dir: 'auto', text: Format.visible(run.name) })))),
        el('tbody', {}, ...kept.map((row) => el('tr', { class: row.differs ? 'differs' : '' }, el('th', { scope: 'row', text: `${mark(row)}${row.name}` }),
          ...row.ones.map((one) => el('td', { class: one?.chosen ? 'chosen' : '', dir: 'auto', text: one ? Format.visible(one.value) : '–' })))))),
      ), several || kept.length === 0 ? undefined : el('p', { class: 'soft', text: 'Bold values were chosen; the others are defaults.' }));
  };

  /** The options of the runs that are shown. */
  const settings = () => {
    let shown = [];
    const words = el('span');
    const place = el('div');
    const draw = () => {
      words.textContent = shown.length > 1 ? 'only what differs' : 'only what was chosen';
      place.replaceChildren(settingsTable(shown, box.checked));
    };
    const box = el('input', { type: 'checkbox', checked: true, on: { change: draw } });
    const root = el('section', {}, el('div', { class: 'controls' }, el('label', { class: 'control' }, box, words)), place);
    const update = (runs) => {
      shown = runs;
      draw();
    };
    return { root, update };
  };

  return { tiles, notices, comparisons, settings };
})();
