'use strict';
// The table of runs: which there are, what came of each, and which of them the page shows.
const Runs = (() => {
  const { el, key, labelled, select } = Dom;
  /** Most runs that are shown at once: more lines than that tell nobody anything. */
  const MOST = 50;

  const stateOf = (run) => run.state.replaceAll('_', ' ');
  const stepsOf = (run) => `${Format.count(run.steps)}${run.total_steps ? ` of ${Format.count(run.total_steps)}` : ''}`;
  const timeOf = (run) => (run.seconds > 0 ? Format.duration(run.seconds) : '–');

  /** Columns by which rows are sorted: name, heading, value, text, explanation. The first one is the row's heading. */
  const COLUMNS = [
    ['name', 'Run', (run) => run.name.toLowerCase()],
    ['state', 'State', stateOf],
    ['steps', 'Steps', (run) => run.steps, stepsOf, 'Completed steps'],
    ['reward', 'Reward', (run) => run.reward, (run) => Format.number(run.reward), 'Mean of the last five steps'],
    ['best_reward', 'Best reward', (run) => run.best_reward, (run) => Format.number(run.best_reward), 'Highest mean of five steps in a row'],
    ['evaluation', 'Evaluation', (run) => run.evaluation, (run) => Format.number(run.evaluation), 'Last evaluation: share of right answers, else mean reward'],
    ['started', 'Started', (run) => run.started, (run) => Format.date(run.started)],
    ['seconds', 'Time', (run) => run.seconds || undefined, timeOf, 'Of all steps together'],
  ];
  // Of these, the first click shows the largest first.
  const FROM_THE_TOP = ['steps', 'reward', 'best_reward', 'evaluation', 'started', 'seconds'];

  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  /** The value of an option as people write it. */
  const plain = (value) => (value === undefined ? 'default' : value.replace(/^"(.*)"$/s, '$1'));

  const wordsOf = (run) => [run.name, run.path, stateOf(run), run.model, run.dataset,
    ...Object.entries(run.options ?? {}).map(([name, value]) => `${name}=${plain(value)} ${name} = ${value}`)].join('\n').toLowerCase();

  /** Whether a run has every word that is looked for. */
  const matches = (run, text) => {
    const words = wordsOf(run);
    return text.toLowerCase().split(/\s+/).every((word) => words.includes(word));
  };

  /** Options in which the runs differ. */
  const differing = (runs) => {
    const names = new Set(runs.flatMap((run) => Object.keys(run.options ?? {})));
    return [...names].filter((name) => runs.some((run) => run.options?.[name] !== runs[0].options?.[name])).sort();
  };

  /** In the order of a column; what has no value comes last, whichever way the others go. */
  const sorted = (runs, { by, down }) => {
    const of = COLUMNS.find(([name]) => name === by)[2];
    const order = (a, b) => {
      const [one, other] = [of(a), of(b)];
      const [none, neither] = [one ?? undefined, other ?? undefined].map((value) => value === undefined);
      if (none || neither) return none - neither;
      const ascending = typeof one === 'string' ? one.localeCompare(other) : one - other;
      return down ? -ascending : ascending;
    };
    return [...runs].sort((a, b) => order(a, b) || a.name.localeCompare(b.name));
  };

  /** A row. Its parts are made once, so that whoever is at its check box stays there. */
  const makeRow = (id, change, only) => {
    const box = el('input', { type: 'checkbox', on: { change: () => change(id, box.checked) } });
    const look = el('span', { class: 'look' });
    const name = el('button', { type: 'button', class: 'name', dir: 'auto', on: { click: () => only(id) } });
    const [what, state, left] = ['soft what', 'state', 'soft left'].map((kind) => el('span', { class: kind }));
    what.dir = 'auto';
    const cells = COLUMNS.slice(2).map(([column, title]) => el('td', { class: 'number', 'data-column': column, 'data-title': title }));
    const texts = cells.map((cell) => cell.appendChild(el('span')));
    cells[0].append(left);
    const root = el('tr', { class: 'run' }, el('td', { class: 'pick' }, el('label', {}, box)), el('th', { scope: 'row' }, look, name, what),
      el('td', { class: 'of-state' }, state), ...cells);
    const update = (run, selected, scheme) => {
      box.checked = selected.includes(run.id);
      root.classList.toggle('chosen', box.checked);
      const shown = Format.visible(run.name);
      box.setAttribute('aria-label', `Show ${shown}`);
      root.title = Format.visible(run.path);
      const line = selected.length > 1 && box.checked ? String(run.index) : '';
      if (look.dataset.line !== line || look.dataset.scheme !== scheme) {
        [look.dataset.line, look.dataset.scheme] = [line, scheme];
        look.replaceChildren(...(line ? [key(Charts.color(run.index), Charts.dash(run.index))] : []));
      }
      say(name, shown);
      name.title = 'Show this run alone';
      const best = run.best ? `, best: ${run.best}` : '';
      const made = run.model ? `${run.model} on ${run.dataset}${best}` : '';
      what.classList.toggle('bad', Boolean(run.error));
      say(what, Format.visible(run.error ?? made));
      what.title = what.textContent;
      state.className = `state ${run.state}`;
      say(state, stateOf(run));
      say(left, run.left ? `${Format.duration(run.left)} left` : '');
      COLUMNS.slice(2).forEach(([, , , text], at) => say(texts[at], text(run)));
    };
    return { root, update };
  };

  /** The table. `change(id, yes)` is told of a check box, `choose(ids)` of runs that are to be shown and no others. */
  const create = (change, choose) => {
    let all = [];
    let selected = [];
    let listed = [];
    const order = { by: 'started', down: true };
    const choice = { text: '', group: '' };
    const rows = new Map();

    const sortBy = (by, down) => {
      [order.by, order.down] = [by, down];
      draw();
    };
    const heads = COLUMNS.map(([name, title, , , what]) => {
      const button = el('button', { type: 'button', class: 'sort', text: title, title: what, on: {
        click: () => sortBy(name, order.by === name ? !order.down : FROM_THE_TOP.includes(name)),
      } });
      return el('th', { scope: 'col', class: name === 'name' || name === 'state' ? '' : 'number' }, button);
    });
    const filter = el('input', { type: 'search', placeholder: 'name, option=value, state', on: {
      input: () => {
        choice.text = filter.value.trim();
        draw();
      },
    } });
    const group = el('select', { on: {
      change: () => {
        choice.group = group.value;
        draw();
      },
    } });
    // Where the table is too narrow for its heads, they are in a list.
    const ends = (name) => (name === 'started' ? ['newest', 'oldest'] : FROM_THE_TOP.includes(name) ? ['largest', 'smallest'] : ['z', 'a']);
    const orders = COLUMNS.flatMap(([name, title]) => ends(name).map((end, at) => [`${name} ${at === 0 ? 'down' : 'up'}`, `${title}, ${end} first`]));
    const sort = select(orders, 'started down', (value) => {
      const [by, way] = value.split(' ');
      sortBy(by, way === 'down');
    });
    const sorting = labelled('Order', sort);
    sorting.classList.add('narrow');
    const everything = el('input', { type: 'checkbox', on: {
      change: () => choose((everything.checked ? listed.slice(0, MOST) : listed.slice(0, 1)).map((run) => run.id)),
    } });
    const words = el('output', { class: 'soft' });
    const controls = el('div', { class: 'controls' }, labelled('Filter', filter), labelled('Group by', group), sorting,
      el('label', { class: 'control' }, everything, el('span', { text: 'all that are listed' })), words);
    const body = el('tbody');
    const table = el('table', { class: 'runs' }, el('thead', {}, el('tr', {}, el('th', {}), ...heads)), body);
    const place = el('div', { class: 'card list', role: 'region', 'aria-label': 'Runs', tabindex: '0' }, table);
    const root = el('section', { class: 'runlist', hidden: true, 'aria-label': 'Table of runs' }, controls, place);

    const rowOf = (run) => {
      if (!rows.has(run.id)) rows.set(run.id, makeRow(run.id, change, (id) => choose([id])));
      return rows.get(run.id);
    };

    /** Rows with the heads of their groups. */
    const grouped = (runs) => {
      if (choice.group === '') return runs.map((run) => rowOf(run).root);
      const groups = new Map();
      for (const run of runs) {
        const value = plain(run.options?.[choice.group]);
        groups.set(value, [...(groups.get(value) ?? []), run]);
      }
      return [...groups].flatMap(([value, members]) => {
        const rewards = members.map((run) => run.reward).filter((reward) => Number.isFinite(reward));
        const mean = rewards.length > 0 ? `, mean reward ${Format.number(rewards.reduce((sum, one) => sum + one, 0) / rewards.length)}` : '';
        const head = el('th', { colSpan: COLUMNS.length + 1, scope: 'rowgroup' }, el('span', { dir: 'auto', text: Format.visible(`${choice.group} = ${value}`) }),
          el('span', { class: 'soft', text: `${members.length} ${members.length === 1 ? 'run' : 'runs'}${mean}` }));
        return [el('tr', { class: 'group' }, head), ...members.map((run) => rowOf(run).root)];
      });
    };

    const showGroups = () => {
      const names = differing(all);
      if (!names.includes(choice.group)) choice.group = '';
      if ([...group.options].slice(1).map((one) => one.value).join() !== names.join() || group.options.length === 0) {
        group.replaceChildren(el('option', { value: '', text: 'nothing' }), ...names.map((name) => el('option', { value: name, text: name })));
      }
      group.value = choice.group;
    };

    const draw = () => {
      root.hidden = all.length === 0;
      controls.hidden = all.length < 2;
      showGroups();
      listed = sorted(all.filter((run) => choice.text === '' || matches(run, choice.text)), order);
      // Colours are others in a dark scheme, and asking for one takes time.
      const scheme = Charts.color(0);
      for (const run of listed) rowOf(run).update(run, selected, scheme);
      const wanted = grouped(listed);
      if (wanted.length !== body.children.length || wanted.some((row, at) => body.children[at] !== row)) {
        // What moves loses the focus, and whoever is at it does not see why.
        const at = document.activeElement;
        body.replaceChildren(...wanted);
        if (at !== document.activeElement && body.contains(at)) at.focus({ preventScroll: true });
      }
      COLUMNS.forEach(([name], at) => {
        if (order.by === name) heads[at].setAttribute('aria-sort', order.down ? 'descending' : 'ascending');
        else heads[at].removeAttribute('aria-sort');
      });
      sort.value = `${order.by} ${order.down ? 'down' : 'up'}`;
      const chosen = listed.filter((run) => selected.includes(run.id)).length;
      everything.checked = chosen > 0 && chosen === Math.min(listed.length, MOST);
      everything.indeterminate = chosen > 0 && !everything.checked;
      everything.disabled = listed.length === 0;
      const some = listed.length === all.length ? `${Format.count(all.length)} runs` : `${Format.count(listed.length)} of ${Format.count(all.length)} runs`;
      const bound = listed.length > MOST ? `; at most the first ${MOST} are shown together` : '';
      say(words, `${some}, ${Format.count(selected.length)} shown${bound}`);
    };

    const update = (runs, chosen) => {
      [all, selected] = [runs, chosen];
      draw();
    };
    return { root, update };
  };

  return { create };
})();
