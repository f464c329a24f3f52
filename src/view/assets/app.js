'use strict';
// The page: which runs are shown, how, and what changes when they go on.
(async () => {
  const { el, labelled, select } = Dom;
  const page = document.getElementById('page');

  // `metrics` are drawn although no chart shows them.
  const state = { runs: [], selected: [], tab: 'curves', metrics: [] };
  const view = {
    axis: 'step',
    smoothing: 0.6,
    /** Newest steps that are shown; 0 for all. */
    last: 0,
    zoomed: null,
    /** The part of an axis that is shown of one that goes from `low` to `high`. */
    window: (low, high) => {
      if (view.zoomed) return view.zoomed;
      const begin = view.last > 0 ? Math.max(low, view.axis === 'step' ? high - view.last + 1 : timeOfLast()) : low;
      return high > begin ? [begin, high] : [begin - 0.5, begin + 0.5];
    },
    zoom: (to) => {
      view.zoomed = to;
      reset.hidden = to === null;
      drawCurves();
    },
  };

  // The parts of the page. Those of the curves are made once and updated.
  const runs = Runs.create((id, yes) => choose(yes ? [...state.selected, id] : state.selected.filter((one) => one !== id)), (ids) => choose(ids));
  const noRuns = el('p', { text: 'The runs are being read.' });
  const live = el('span', { class: 'live' });
  const tiles = el('div');
  const notices = el('div');
  const workers = Workers.create();
  const lanes = el('div', { class: 'lanes' });
  const sections = el('div');
  const picker = Picker.create((key) => setMetrics([...state.metrics, key]));
  const pickedGrid = el('div', { class: 'grid' });
  const picked = el('section', { class: 'charts empty' }, el('h2', { text: 'Other metrics' }), pickedGrid);
  const problem = el('p', { class: 'problem', role: 'alert', hidden: true });
  const reset = el('button', { type: 'button', text: 'Whole range', hidden: true, on: { click: () => view.zoom(null) } });
  const smoothing = el('input', { type: 'range', min: '0', max: '0.99', step: '0.01', value: String(view.smoothing), on: {
    input: () => {
      view.smoothing = Number(smoothing.value);
      amount.textContent = smoothing.value;
      drawCurves();
    },
  } });
  const amount = el('output', { text: smoothing.value });
  const controls = el('div', { class: 'controls' },
    labelled('Along', select([['step', 'steps'], ['time', 'time']], 'step', (axis) => {
      view.axis = axis;
      view.zoom(null);
    })),
    labelled('Smoothing', smoothing, amount),
    labelled('Range', select([[0, 'all steps'], [1000, 'last 1,000'], [100, 'last 100'], [20, 'last 20']], 0, (last) => {
      view.last = Number(last);
      view.zoom(null);
    })), reset, picker.root, el('span', { class: 'soft drag', text: 'Drag over a chart to look closer.' }));
  // Runs are named by their paths: their numbers are those of one server.
  const samples = Samples.create((run, step) => {
    const place = `completions/${encodeURIComponent(run.path)}`;
    location.hash = step === undefined ? place : `${place}/${step}`;
  });
  const settings = Panels.settings();
  const tabs = {
    curves: ['Curves', el('div', {}, tiles, notices, workers.root, controls, lanes, picked, sections)],
    completions: ['Completions', samples.root],
    configuration: ['Configuration', settings.root],
  };
  const links = Object.entries(tabs).map(([name, [title]]) => el('a', { href: `#${name}`, text: title }));
  const main = el('main', {}, ...Object.values(tabs).map(([, root]) => root));
  // Charts take their width from it, so it has its place before there is anything to show in it.
  main.style.visibility = 'hidden';
  page.replaceChildren(el('header', { class: 'top' }, el('h1', { text: Source.isReport ? 'Training report' : 'Tandem' }), live, el('nav', { 'aria-label': 'Parts' }, ...links)), runs.root, noRuns, problem, main);

  const shown = () => state.runs.filter((run) => state.selected.includes(run.id));
  /** When the newest steps began, of the run that is longest at them. */
  const timeOfLast = () => Math.min(...shown().map(({ figures: { times } }) => times[times.length - view.last - 1] ?? 0));

  // What could not be read, by what was attempted: that something else succeeds mends nothing.
  const problems = new Map();
  const trying = async (what, work) => {
    try {
      await work();
      problems.delete(what);
    } catch (error) {
      problems.set(what, error.message);
    }
    const said = [...new Set(problems.values())].map((message) => `Something could not be read: ${message}`).join(' ');
    problem.hidden = said === '';
    if (problem.textContent !== said) problem.textContent = said;
  };

  // Charts are drawn when they come near the window, the others when they do.
  const near = new Set();
  const charts = [];
  const drawChart = (chart) => chart.update(shown());
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      for (const chart of charts.filter((one) => one.section === target)) {
        if (isIntersecting && !near.has(chart)) {
          near.add(chart);
          drawChart(chart);
        } else if (!isIntersecting) near.delete(chart);
      }
      if (isIntersecting) tidy(target);
    }
  }, { rootMargin: '300px' });
  const tidy = (section) => {
    section.classList.toggle('empty', charts.filter((chart) => chart.section === section).every((chart) => chart.figure.hidden));
  };

  const makeCharts = async () => {
    const grids = new Map();
    for (const declared of await Source.charts()) {
      if (!grids.has(declared.group)) {
        const grid = el('div', { class: 'grid' });
        const section = el('section', { class: 'charts' }, el('h2', { text: declared.group }), grid);
        grids.set(declared.group, { grid, section });
        sections.append(section);
      }
      const { grid, section } = grids.get(declared.group);
      const chart = { ...Charts.create(declared, view), section };
      grid.append(chart.figure);
      charts.push(chart);
    }
    for (const { section } of grids.values()) watcher.observe(section);
  };

  /** The charts of metrics that were asked for, each of which can be taken away. */
  const drawPicked = () => {
    for (const chart of charts.filter((one) => one.section === picked && !state.metrics.includes(one.key))) {
      charts.splice(charts.indexOf(chart), 1);
      near.delete(chart);
      chart.figure.remove();
    }
    for (const key of state.metrics.filter((one) => !charts.some((chart) => chart.key === one))) {
      const declared = { title: Format.visible(key), note: '', smooth: true, curves: [{ key, label: key, evaluated: false }] };
      const chart = { ...Charts.create(declared, view), section: picked, key };
      chart.figure.append(el('button', { type: 'button', class: 'away', text: 'Take away', 'aria-label': `Take away ${Format.visible(key)}`, on: {
        click: () => setMetrics(state.metrics.filter((one) => one !== key)),
      } }));
      pickedGrid.append(chart.figure);
      charts.push(chart);
      near.add(chart);
    }
    tidy(picked);
  };

  const curvesHash = () => `curves${state.metrics.length > 0 ? `/${state.metrics.map(encodeURIComponent).join(',')}` : ''}`;

  /** Draws these metrics in addition to the charts, and puts them into the address. */
  const setMetrics = async (keys) => {
    state.metrics.splice(0, Infinity, ...new Set(keys));
    links[0].href = `#${curvesHash()}`;
    if (state.tab === 'curves' && location.hash.slice(1) !== curvesHash()) history.replaceState(null, '', `#${curvesHash()}`);
    // Runs that are chosen later are asked for them, too.
    for (const run of state.runs) run.loaded &&= state.selected.includes(run.id);
    await trying('metrics', () => Promise.all(shown().map((run) => run.figures.refresh())));
    drawPicked();
    drawCurves();
  };

  const LANES = 4;
  const laneOf = new Map();
  const drawLanes = () => {
    const all = shown().slice(0, LANES);
    const figures = all.map((run) => {
      if (!laneOf.has(run.id)) laneOf.set(run.id, Lanes.create(view));
      return laneOf.get(run.id).figure;
    });
    const rest = shown().length - all.length;
    const wanted = [...figures, ...(rest > 0 ? [el('p', { class: 'soft', text: `Who waits for whom is drawn of the first ${LANES} runs; ${rest} more are chosen.` })] : [])];
    // Whoever moves along a lane by keys stays in it.
    if (wanted.length !== lanes.children.length || figures.some((figure, at) => lanes.children[at] !== figure)) lanes.replaceChildren(...wanted);
    for (const run of all) laneOf.get(run.id).update(run, all.length > 1);
  };

  let asked = 0;
  const drawCurves = () => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(() => {
      if (state.tab !== 'curves') return;
      const runs = shown();
      tiles.replaceChildren(Panels.tiles(runs));
      notices.replaceChildren(Panels.notices(runs), Panels.comparisons(runs));
      workers.update(runs);
      drawLanes();
      picker.update([...new Set(runs.flatMap((run) => run.figures.others))].filter((key) => !state.metrics.includes(key)).sort());
      for (const chart of charts) if (near.has(chart)) drawChart(chart);
      for (const { section } of charts) tidy(section);
    });
  };

  const drawSettings = async () => {
    const all = shown();
    await Promise.all(all.map(async (run) => { run.settings ??= await Source.settings(run.id); }));
    settings.update(all);
  };

  /** The run and the step that the address names. */
  const named = () => {
    const [, path, step] = location.hash.slice(1).split('/');
    let run;
    try {
      run = state.runs.find((one) => one.path === decodeURIComponent(path ?? ''));
    } catch {
      // An address that was cut.
    }
    return { run, step: run && step !== undefined ? Number(step) : undefined };
  };

  const draw = (quiet) => trying('draw', async () => {
    const all = shown();
    if (all.length === 0) return;
    if (state.tab === 'curves') drawCurves();
    if (state.tab === 'configuration') await drawSettings();
    if (state.tab === 'completions') {
      const { run, step } = named();
      await (all.includes(run) ? samples.update(all, run, step, quiet) : samples.update(all, all[0], undefined, quiet));
    }
  });

  const EVERYTHING = ['curves', 'notices', 'comparisons', 'workers'];
  const load = (run, parts) => Promise.all([
    parts.includes('curves') ? run.figures.refresh() : undefined,
    parts.includes('notices') || parts.includes('state') ? Source.notices(run.id).then((found) => { run.notices = found; }) : undefined,
    parts.includes('workers') ? Source.workers(run.id).then((found) => { run.workers = found; }) : undefined,
    parts.includes('comparisons') ? Source.comparisons(run.id).then((found) => { run.comparisons = found; }) : undefined,
  ]);

  /** Shows these runs and no others; at least one is always shown. */
  const choose = async (ids) => {
    if (ids.length > 0) state.selected = [...ids].sort((a, b) => a - b);
    await trying('choose', () => Promise.all(shown().filter((run) => !run.loaded).map(async (run) => {
      await load(run, EVERYTHING);
      run.loaded = true;
    })));
    shown().forEach((run, index) => { run.index = index; });
    drawRuns();
    await draw();
  };

  const drawRuns = () => {
    runs.update(state.runs, state.selected);
    noRuns.textContent = 'There is no run yet. This page shows it when it has made its first step.';
    noRuns.hidden = state.runs.length > 0;
    document.title = shown().length === 1 ? `${shown()[0].name} · Tandem` : 'Tandem';
  };

  /** Names that are as short as they can be while no two runs have the same one. */
  const distinguish = (runs) => {
    let open = runs;
    for (let parts = 2; parts <= 12 && open.length > 0; parts += 1) {
      const end = (run) => run.path.split('/').slice(-parts).join('/');
      const count = new Map();
      for (const run of runs) count.set(end(run), (count.get(end(run)) ?? 0) + 1);
      for (const run of open) run.name = end(run);
      open = open.filter((run) => count.get(run.name) > 1);
    }
  };

  /** Takes over what is known of a run now. Its name is made here, and of one that was removed its beginning is still known. */
  const adopt = (run, { name, started, ...rest }) => Object.assign(run, rest, { started: started ?? run.started });

  const listRuns = async () => {
    const found = await Source.runs();
    found.forEach((overview, id) => {
      const known = state.runs.find((run) => run.id === id);
      if (known) adopt(known, overview);
      else state.runs.push(adopt({ id, index: 0, figures: new Figures(id, state.metrics) }, overview));
    });
    distinguish(state.runs);
    drawRuns();
    // The page begins with the run that its address names, or that goes on, else with the first.
    if (state.selected.length === 0 && state.runs.length > 0) {
      await choose([(named().run ?? state.runs.find((run) => run.state === 'running') ?? state.runs[0]).id]);
    }
  };

  const route = async () => {
    const [name] = location.hash.slice(1).split('/');
    state.tab = Object.hasOwn(tabs, name) ? name : 'curves';
    Object.entries(tabs).forEach(([one, [, root]], at) => {
      root.hidden = one !== state.tab;
      if (one === state.tab) links[at].setAttribute('aria-current', 'page');
      else links[at].removeAttribute('aria-current');
    });
    if (state.tab === 'curves') {
      const keys = keysOf(location.hash.split('/')[1]);
      if (keys.length > 0 && keys.join() !== state.metrics.join()) await setMetrics(keys);
      else if (location.hash.slice(1) !== '' && location.hash.slice(1) !== curvesHash()) history.replaceState(null, '', `#${curvesHash()}`);
    }
    const { run } = named();
    await (run && !state.selected.includes(run.id) ? choose([...state.selected, run.id]) : draw());
  };

  /** The metrics that an address names. */
  const keysOf = (part = '') => {
    try {
      return part.split(',').map(decodeURIComponent).filter(Boolean);
    } catch {
      // An address that was cut.
      return [];
    }
  };

  window.addEventListener('hashchange', route);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => {
    view.scheme = event.matches;
    drawRuns();
    drawCurves();
  });

  await trying('charts', makeCharts);
  await trying('runs', listRuns);
  noRuns.hidden ||= problems.has('runs');
  main.style.visibility = '';
  await route();
  document.documentElement.dataset.ready = 'yes';

  if (!Source.follow) {
    live.hidden = true;
    return;
  }
  let lost = false;
  const refresh = () => trying('runs', async () => {
    await listRuns();
    await Promise.all(shown().map(async (run) => {
      await load(run, EVERYTHING);
      problems.delete(`run ${run.id}`);
    }));
    await draw(true);
  });
  // What changes is shown together, and seldom enough for the page to be at work for a hundredth of the time: the machine may be
  // the one that trains.
  const REST = 100;
  const LONGEST_REST = 5000;
  const pending = new Map();
  let timer;
  let restedAt = 0;
  const take = async (id, parts) => {
    const run = state.runs.find((one) => one.id === id);
    if (run && !state.selected.includes(id)) run.loaded = false;
    if (parts.includes('state') || !run) await listRuns();
    else if (parts.includes('curves')) adopt(run, await Source.overview(id));
    if (run?.loaded) await load(run, parts);
  };
  const showNews = async () => {
    const begin = performance.now();
    const news = [...pending];
    pending.clear();
    await Promise.all(news.map(([id, parts]) => trying(`run ${id}`, () => take(id, [...parts]))));
    // Workers change every second, and nothing else with them.
    if (news.every(([, parts]) => [...parts].every((part) => part === 'workers'))) workers.update(shown());
    else {
      drawRuns();
      await draw(true);
    }
    // Curves are drawn in the next frame.
    await new Promise((drawn) => { requestAnimationFrame(() => requestAnimationFrame(drawn)); });
    const end = performance.now();
    restedAt = end + Math.min(REST * (end - begin), LONGEST_REST);
    timer = undefined;
    if (pending.size > 0) wait();
  };
  const wait = () => { timer ??= setTimeout(showNews, Math.max(restedAt - performance.now(), 0)); };
  Source.follow((id, parts) => {
    pending.set(id, new Set([...(pending.get(id) ?? []), ...parts]));
    wait();
  }, (connected) => {
    live.textContent = connected ? 'live' : 'not connected';
    live.classList.toggle('lost', !connected);
    // What happened while the connection was lost; or why it is.
    if (connected ? lost : !lost && !document.hidden) refresh();
    lost = !connected;
  });
  // Whoever waits for the first run sees it at once; others come when they come.
  let ticks = 0;
  setInterval(() => {
    ticks += 1;
    if (state.runs.length === 0 || ticks % 8 === 0) trying('runs', listRuns);
    // A table that nobody writes any more says nothing of that by itself.
    if (ticks % 8 === 0 && !document.hidden) {
      for (const run of shown().filter((one) => one.workers?.current && !pending.has(one.id))) {
        pending.set(run.id, new Set(['workers']));
        wait();
      }
    }
  }, 2000);
})();
