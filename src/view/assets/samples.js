'use strict';
// The completions of a run, step by step.
const Samples = (() => {
  const { el, labelled, select } = Dom;
  const CHUNK = 40;

  // States of completions that are in a batch, and in no loss of the policy.
  const LEFT_OUT = ['truncated', 'off_policy', 'off_policy_masked', 'low_entropy', 'early_stopped', 'critic_warmup', 'step_skipped'];
  const FILTERS = [
    ['all', 'all', () => true],
    ['best', 'best of each group', (one) => one.best],
    ['worst', 'worst of each group', (one) => one.worst],
    ['truncated', 'truncated', (one) => one.row.finish_reason === 'length'],
    ['failed', 'reward failed', (one) => ['reward_failed', 'environment_failed', 'straggler'].includes(one.row.state) || Object.keys(one.row.reward_errors ?? {}).length > 0],
    ['abstained', 'no reward applied', (one) => one.row.state === 'abstained'],
    ['left_out', 'left out of the loss', (one) => LEFT_OUT.includes(one.row.state)],
    ['stale', 'stale', (one) => one.row.state === 'stale'],
    ['no_contrast', 'no contrast', (one) => one.row.state === 'no_contrast' || one.equal],
    ['dropped', 'not trained on', (one) => one.row.state !== undefined && one.row.state !== 'trained'],
  ];
  const SORTS = [
    ['group', 'group', () => 0],
    ['reward', 'reward, highest first', (one) => -(one.row.reward ?? -Infinity)],
    ['reward_up', 'reward, lowest first', (one) => one.row.reward ?? Infinity],
    ['length', 'length, longest first', (one) => -(one.row.tokens ?? 0)],
    ['advantage', 'advantage, largest first', (one) => -Math.abs(one.row.advantage ?? 0)],
  ];

  /** Every completion of a step, with what its group makes of it. */
  const flat = (step) => step.groups.flatMap((group) => {
    const rewards = group.samples.map((row) => row.reward).filter((reward) => Number.isFinite(reward));
    const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
    const equal = rewards.length > 1 && low === high;
    return group.samples.map((row) => ({
      group, row, equal, best: row.reward === high && !equal, worst: row.reward === low && !equal,
    }));
  });

  const nameOf = ({ group, row }) => `${group.group ?? `@${group.position}`}.${row.sample ?? 0}`;
  const stateOf = (row) => (row.state ?? '').replaceAll('_', ' ');

  const facts = (one) => {
    const { row } = one;
    const list = [
      ['reward', Format.number(row.reward)],
      ...Object.entries(row.rewards ?? {}).map(([name, value]) => [name, Format.number(value)]),
      ['advantage', Format.number(row.advantage)],
      ['tokens', String(row.tokens ?? '–')],
      ...(row.given_tokens ? [['given tokens', String(row.given_tokens)]] : []),
      ['ended by', row.end?.replaceAll('_', ' ') ?? row.finish_reason ?? '–'],
      ...(row.messages ? [['turns', String(row.turns)], ['calls', row.failed_calls > 0 ? `${row.calls}, ${row.failed_calls} failed` : String(row.calls)]] : []),
      ...(row.turn_rewards ? [['rewards of turns', [...row.turn_rewards.map((one) => Format.number(one)), ...(Number.isFinite(row.end_reward) ? [`at the end ${Format.number(row.end_reward)}`] : [])].join(', ')]] : []),
      ['version', String(row.version ?? '–')],
      ['state', stateOf(row) || '–'],
    ];
    return el('dl', { class: 'facts' }, ...list.map(([name, value]) =>
      el('div', {}, el('dt', { text: Format.visible(name), dir: 'auto' }), el('dd', { text: Format.visible(value) }))));
  };

  // Columns that hold the right answer, the first of them that a row has.
  const ANSWERS = ['answer', 'solution'];
  const answerColumn = (columns) => ANSWERS.find((name) => columns?.[name] !== undefined && columns[name] !== null);
  const textOf = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

  /** The right answer of a row in a line: of a worked solution, what stands behind its last `####`. */
  const answerOf = (columns) => {
    const name = answerColumn(columns);
    if (name === undefined) return undefined;
    const text = textOf(columns[name]);
    const end = text.lastIndexOf('####');
    return preview(end < 0 ? text : text.slice(end + 4).trim().split('\n')[0], 80);
  };

  /** Values by name, those that are short side by side, the others below each other. */
  const values = (columns, without) => {
    const entries = Object.entries(columns ?? {}).filter(([name]) => name !== without).map(([name, value]) => [name, textOf(value)]);
    const short = entries.filter(([, text]) => text.length <= 60 && !text.includes('\n'));
    const long = entries.filter((entry) => !short.includes(entry));
    return [
      ...(short.length > 0 ? [el('dl', { class: 'facts' }, ...short.map(([name, text]) =>
        el('div', {}, el('dt', { text: Format.visible(name), dir: 'auto' }), el('dd', { text: Format.visible(text), dir: 'auto' }))))] : []),
      ...long.map(([name, text]) => el('div', { class: 'value' }, el('b', { dir: 'auto', text: Format.visible(name) }), Tokens.textBlock(text))),
    ];
  };

  /** The colour of a reward between the lowest and the highest of those that are listed. */
  const scaleOf = (rewards) => {
    const finite = rewards.filter((reward) => Number.isFinite(reward));
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const of = (reward) => {
      if (!Number.isFinite(reward) || high <= low) return '';
      const share = (2 * (reward - low)) / (high - low) - 1;
      return `color-mix(in srgb, var(${share < 0 ? '--low' : '--high'}) ${Math.round(45 * Math.abs(share))}%, transparent)`;
    };
    return { low, high, of };
  };

  const preview = (text, most = 240) => {
    const flatText = Format.visible(text.replaceAll('\n', ' ⏎ '));
    return flatText.length > most ? `${flatText.slice(0, most)}…` : flatText;
  };

  /** One line of the list; a button, so that keys and screen readers find it. */
  const line = (one, scale, open) => {
    const { row } = one;
    const answer = answerOf(one.group.columns);
    const reward = el('span', { class: 'reward', text: Format.number(row.reward), title: 'Reward' });
    reward.style.backgroundColor = scale.of(row.reward);
    const marks = [row.finish_reason === 'length' ? 'truncated' : undefined, row.state === 'trained' ? undefined : stateOf(row)];
    return el('li', {}, el('button', { type: 'button', class: 'sample', on: { click: () => open(one) } },
      el('span', { class: 'id', text: nameOf(one) }),
      reward,
      el('span', { class: 'advantage', title: 'Advantage', text: Format.signed(row.advantage) }),
      el('span', { class: 'words', dir: 'auto', text: preview(row.completion ?? '') || '(nothing)' }),
      answer === undefined ? undefined : el('span', { class: 'answer', dir: 'auto', title: 'Right answer' }, el('i', { text: 'right: ' }), answer),
      el('span', { class: 'soft', text: [`${row.tokens ?? '–'} tokens`, ...marks.filter(Boolean)].join(' · ') })));
  };

  /** What the figures at the beginning of a line are. */
  const lineHead = () => el('li', { class: 'head', 'aria-hidden': 'true' }, ...['', 'reward', 'advantage', 'completion'].map((text) => el('span', { text })));

  const groupHead = (group) => el('li', { class: 'group' },
    el('b', { text: group.group === null ? `dropped group @${group.position}` : `group ${group.group}` }),
    el('span', { class: 'soft', text: ` prompt ${group.prompt_id}` }),
    el('p', { dir: 'auto', text: preview(Tokens.turnsOf(group.prompt)?.filter((turn) => turn.text.trim()).at(-1)?.text ?? group.prompt) }));

  /** Opens a completion over the page. */
  const open = async (run, step, one) => {
    const body = el('div', { class: 'body' }, el('p', { text: 'Loading…' }));
    const dialog = el('dialog', { 'aria-label': `Completion ${step}.${nameOf(one)}` },
      el('header', {}, el('h2', { text: `Completion ${step}.${nameOf(one)}` }),
        el('button', { type: 'button', text: 'Close', on: { click: () => dialog.close() } })), body);
    dialog.addEventListener('close', () => dialog.remove());
    dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
    dialog.showModal();
    let { row } = one;
    let tokens;
    let problem;
    try {
      ({ row, tokens } = await Source.sample(run.id, step, one.group.position, row.sample));
    } catch (error) {
      problem = el('p', { class: 'soft', text: error.message });
    }
    const cut = (key) => (row[`${key}_characters`]
      ? el('p', { class: 'soft', text: `The beginning of ${Format.count(row[`${key}_characters`])} characters; the file has all.` }) : undefined);
    const errors = Object.entries(row.reward_errors ?? {}).map(([name, error]) =>
      el('p', { class: 'problem', dir: 'auto', text: `${Format.visible(name)} failed: ${Format.visible(error)}` }));
    if (row.failure) errors.unshift(el('p', { class: 'problem', dir: 'auto', text: `the environment failed: ${Format.visible(row.failure)}` }));
    const section = (title, ...children) => el('section', {}, el('h3', { text: title }), ...children);
    const listed = (title, parts) => (parts.length > 0 ? [section(title, ...parts)] : []);
    const columns = row.columns ?? one.group.columns;
    /** The completion, with the right answer beside it. */
    const answered = ({ completion }, note) => {
      const text = row.messages ? section('Conversation', ...Tokens.messages(row)) : section('Completion', Tokens.textBlock(completion ?? ''), note);
      const name = answerColumn(columns);
      if (name === undefined) return text;
      const answer = section('Right answer', Tokens.textBlock(textOf(columns[name])), el('p', { class: 'soft', text: `column ${name}` }));
      return el('div', { class: 'sides answered' }, text, answer);
    };
    body.replaceChildren(facts({ ...one, row }), ...errors, ...(problem ? [problem] : []),
      section(row.shared_prompt ? 'Prompt of the row, which the agent was given' : 'Prompt', Tokens.prompt(row.prompt ?? one.group.prompt), cut('prompt')),
      ...(row.shared_prompt ? [section('What the policy read before all else, in all completions of the group', Tokens.prompt(row.shared_prompt), cut('shared_prompt'))] : []),
      answered(row, cut('completion')),
      ...listed('Row of the dataset', values(columns, answerColumn(columns))), ...listed('Logged by reward functions', values(row.extra)),
      tokens ? Tokens.view(tokens) : el('p', { class: 'soft', text: 'The figures of its tokens are not kept (`token_records`).' }));
  };

  /** A list that grows as its end comes into view: a step may have thousands of completions. */
  const growing = (list, items) => {
    let shown = 0;
    const more = el('li', { class: 'more' });
    const grow = () => {
      more.before(...items.slice(shown, shown + CHUNK).map((item) => item()));
      shown += CHUNK;
      if (shown >= items.length) {
        watcher.disconnect();
        more.remove();
      } else {
        // If its end is still in view, it grows again.
        watcher.unobserve(more);
        watcher.observe(more);
      }
    };
    const watcher = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && grow(), { rootMargin: '600px' });
    list.replaceChildren(more);
    grow();
  };

  /** The page of a run's completions. `go` asks for another run or step. */
  const create = (go) => {
    const list = el('ol', { class: 'samples card' });
    const status = el('output', { class: 'soft' });
    const key = el('p', { class: 'soft scale', hidden: true });
    /** Says what the colours of rewards are. */
    const say = (where, { low, high, of }) => {
      where.hidden = !(high > low);
      if (where.hidden) return;
      const end = (reward) => {
        const mark = el('span', { class: 'reward', text: Format.number(reward) });
        mark.style.backgroundColor = of(reward);
        return mark;
      };
      where.replaceChildren('Rewards from ', end(low), ' to ', end(high));
    };
    const pairs = el('div');
    const choice = { filter: 'all', sort: 'group', text: '' };
    let at = {};
    let runs = [];
    let steps = [];
    let pairsUpTo;
    let data;
    let hits;
    // Answers that come after another question was asked are not shown.
    let turns = 0;
    let updated = Promise.resolve();

    const show = () => {
      if (hits) return showHits();
      if (!data) return;
      const wanted = choice.text.toLowerCase();
      const keep = FILTERS.find(([name]) => name === choice.filter)[2];
      const order = SORTS.find(([name]) => name === choice.sort)[2];
      const all = flat(data);
      const kept = all.filter(keep).filter(({ row, group }) =>
        wanted === '' || (row.completion ?? '').toLowerCase().includes(wanted) || group.prompt.toLowerCase().includes(wanted));
      const sorted = kept.map((one, index) => [order(one), index, one]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , one]) => one);
      const cut = wanted !== '' && all.some(({ row }) => row.completion_characters) ? '; of long ones only the beginning was searched, but In all steps searches all of it' : '';
      const damage = data.damage ? `; left out: ${data.damage}` : '';
      status.textContent = (kept.length === all.length ? `${Format.count(all.length)} completions in ${data.groups.length} groups`
        : `${Format.count(kept.length)} of ${Format.count(all.length)} completions${cut}`) + damage;
      const scale = scaleOf(sorted.map(({ row }) => row.reward));
      say(key, scale);
      let before;
      growing(list, [...(sorted.length > 0 ? [lineHead] : []), ...sorted.flatMap((one) => {
        const heading = choice.sort === 'group' && one.group !== before ? [() => groupHead(one.group)] : [];
        before = one.group;
        return [...heading, () => line(one, scale, (which) => open(at.run, data.step, which))];
      })]);
    };

    const showHits = () => {
      const { hits: found, more, down_to: last } = hits;
      key.hidden = true;
      status.textContent = `${found.length} completions of all steps have “${choice.text}”${more ? `; searched down to step ${last}` : ''}`;
      growing(list, found.map((hit) => () => el('li', {}, el('button', { type: 'button', class: 'sample', on: {
        click: () => open(at.run, hit.step, { group: { position: hit.position, group: null }, row: { sample: hit.sample } }),
      } },
      el('span', { class: 'id', text: `${hit.step}` }), el('span', { class: 'reward', text: Format.number(hit.reward) }), el('span', { class: 'advantage' }),
      el('span', { class: 'words', dir: 'auto', text: preview(hit.excerpt) }), el('span', { class: 'soft', text: `step ${hit.step}` })))));
    };

    const search = async () => {
      status.textContent = 'Searching…';
      const turn = (turns += 1);
      try {
        const found = await Source.search(at.run.id, choice.text);
        if (turn !== turns) return;
        hits = found;
        show();
      } catch (error) {
        status.textContent = error.message;
      }
    };

    const step = async (wanted) => {
      hits = undefined;
      const turn = (turns += 1);
      try {
        const found = await Source.step(at.run.id, wanted);
        if (turn !== turns) return;
        data = found;
        show();
      } catch (error) {
        if (turn !== turns) return;
        data = undefined;
        key.hidden = true;
        list.replaceChildren();
        status.textContent = error.message;
      }
    };

    // Controls are made once and set anew, so that whoever is at one stays there.
    const to = (where) => steps[where] !== undefined && go(at.run, steps[where]);
    const beside = (text, label, by) => el('button', { type: 'button', text, 'aria-label': label, on: { click: () => to(steps.indexOf(at.step) + by) } });
    const [earlier, later] = [beside('◀', 'Earlier step', -1), beside('▶', 'Later step', 1)];
    const which = el('select', { on: { change: () => go(runs.find((run) => String(run.id) === which.value)) } });
    const number = el('input', { type: 'number', class: 'step', on: {
      change: () => {
        const wanted = Number(number.value);
        go(at.run, steps.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best), steps[0]));
      },
    } });
    const slider = el('input', { type: 'range', min: '0', 'aria-label': 'Step', on: { change: () => to(Number(slider.value)) } });
    const again = () => {
      hits = undefined;
      show();
    };
    const text = el('input', { type: 'search', placeholder: 'text in prompts and completions', 'aria-label': 'search completions', on: {
      input: () => {
        choice.text = text.value;
        again();
      },
      keydown: (event) => event.key === 'Enter' && choice.text && Source.search && search(),
    } });
    const chosen = (name) => (value) => {
      choice[name] = value;
      again();
    };
    const whichControl = labelled('Run', which);
    const controls = el('div', { class: 'controls' }, whichControl, labelled('Step', number), el('span', { class: 'control' }, earlier, slider, later),
      labelled('Show', select(FILTERS, choice.filter, chosen('filter'))), labelled('Sort by', select(SORTS, choice.sort, chosen('sort'))),
      labelled('Search', text),
      Source.search ? el('button', { type: 'button', text: 'In all steps', on: { click: () => choice.text && search() } }) : undefined);
    const root = el('div', {}, controls, status, key, list, pairs);

    const showControls = () => {
      const index = steps.indexOf(at.step);
      const names = runs.map((run) => [String(run.id), Format.visible(run.name)]);
      if ([...which.options].map((one) => `${one.value} ${one.text}`).join() !== names.map((one) => one.join(' ')).join()) {
        which.replaceChildren(...names.map(([value, name]) => el('option', { value, text: name })));
      }
      which.value = String(at.run.id);
      whichControl.hidden = runs.length < 2;
      [number.min, number.max] = [String(steps[0] ?? 0), String(steps.at(-1) ?? 0)];
      if (document.activeElement !== number) number.value = String(at.step ?? '');
      slider.max = String(Math.max(steps.length - 1, 0));
      slider.value = String(index);
      earlier.disabled = steps[index - 1] === undefined;
      later.disabled = steps[index + 1] === undefined;
    };

    const showPairs = async () => {
      const { run } = at;
      const found = await Source.pairs(run.id);
      if (run !== at.run) return;
      pairsUpTo = steps.at(-1);
      const cell = (one) => el('div', {}, el('span', { class: 'soft', text: `step ${one.step} · reward ${Format.number(one.reward)}` }), Tokens.textBlock(one.text));
      pairs.replaceChildren(...(found.length === 0 ? [] : [el('h2', { text: 'Before and after' }),
        ...found.map(({ before, after }) => el('article', { class: 'card pair' },
          before.prompt === after.prompt ? Tokens.prompt(before.prompt) : el('p', { class: 'soft', text: 'different prompts' }),
          el('div', { class: 'sides' }, cell(before), cell(after))))]));
    };

    const renew = async (all, run, wanted, quiet) => {
      const other = at.run?.id !== run.id;
      const found = await Source.steps(run.id);
      [runs, steps] = [all, found];
      // Whoever reads is not disturbed by the next step.
      const reads = hits !== undefined || root.contains(document.activeElement);
      const stays = quiet && at.step !== undefined && (!at.newest || reads);
      const newest = wanted === undefined || wanted === steps.at(-1);
      const next = stays ? at.step : wanted ?? steps.at(-1);
      const same = !other && next === at.step;
      at = { run, step: next, newest: stays ? false : newest };
      showControls();
      if (next === undefined) {
        [data, hits] = [];
        key.hidden = true;
        list.replaceChildren();
        status.textContent = 'No completions are kept yet (`log_completions`).';
      } else if (!same) await step(next);
      // Whoever reads is not disturbed by the newest completions; who comes again sees them.
      if (other || (!quiet && pairsUpTo !== steps.at(-1))) await showPairs();
    };
    /** Shows a run at a step, the newest if none is named. One after the other: news must not overtake what somebody asked for. */
    const update = (...what) => {
      updated = updated.catch(() => {}).then(() => renew(...what));
      return updated;
    };
    return { root, update };
  };

  return { create };
})();
