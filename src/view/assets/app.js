'use strict';
// The page: which runs are shown, how, and what changes when they go on.
(async () => {
  const { el, labelled, select } = Dom;
  const page = document.getElementById('page');

  const state = { runs: [], selected: [], tab: 'curves', only: true };
  const view = {
    axis: 'step',
    smoothing: 0.6,
    last: 0,
    zoomed: null,
    /** The part of an axis that is shown of one that goes from `low` to `high`. */
    window: (low, high) => {
      if (view.zoomed) return view.zoomed;
      if (view.last > 0 && view.axis === 'step') return [Math.max(low, high - view.last + 1), Math.max(high, low + 1)];
      return high > low ? [low, high] : [low - 0.5, low + 0.5];
    },
    zoom: (to) => {
      view.zoomed = to;
      reset.hidden = to === null;
      drawCurves();
    },
  };

  // The parts of the page. Those of the curves are made once and updated.
  const runList = el('div');
  const live = el('span', { class: 'live' });
  const tiles = el('div');
  const notices = el('div');
  const lanes = el('div', { class: 'lanes' });
  const sections = el('div');
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
    })), reset, el('span', { class: 'soft drag', text: 'Drag over a chart to look closer.' }));
  const samples = Samples.create((run, step) => { location.hash = step === undefined ? `completions/${run}` : `completions/${run}/${step}`; });
  const settings = el('div');
  const tabs = {
    curves: ['Curves', el('div', {}, tiles, notices, controls, lanes, sections)],
    completions: ['Completions', samples.root],
    configuration: ['Configuration', settings],
  };
  const links = Object.entries(tabs).map(([name, [title]]) => el('a', { href: `#${name}`, text: title }));
  const main = el('main', {}, ...Object.values(tabs).map(([, root]) => root));
  page.replaceChildren(el('header', { class: 'top' }, el('h1', { text: Source.isReport ? 'Training report' : 'Tandem' }), live, el('nav', { 'aria-label': 'Parts' }, ...links)), runList, problem, main);

  const shown = () => state.runs.filter((run) => state.selected.includes(run.id));
  const fail = (error) => {
    problem.hidden = !error;
    problem.textContent = error ? `Something could not be read: ${error.message}` : '';
  };
  const trying = async (work) => {
    try {
      await work();
      fail();
    } catch (error) {
      fail(error);
    }
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

  const laneOf = new Map();
  const drawLanes = () => {
    const all = shown().slice(0, 4);
    lanes.replaceChildren(...all.map((run) => {
      if (!laneOf.has(run.id)) laneOf.set(run.id, Lanes.create(view));
      return laneOf.get(run.id).figure;
    }));
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
      drawLanes();
      for (const chart of charts) if (near.has(chart)) drawChart(chart);
      for (const { section } of charts) tidy(section);
    });
  };

  const drawSettings = async () => {
    const runs = shown();
    await Promise.all(runs.map(async (run) => { run.settings ??= await Source.settings(run.id); }));
    settings.replaceChildren(Panels.settings(runs, state.only, (only) => {
      state.only = only;
      drawSettings();
    }));
  };

  const wantedSample = () => {
    const [, run, step] = location.hash.slice(1).split('/');
    const all = shown();
    return [all.find(({ id }) => String(id) === run) ?? all[0], step === undefined ? undefined : Number(step)];
  };

  const draw = (quiet) => trying(async () => {
    if (shown().length === 0) return;
    if (state.tab === 'curves') drawCurves();
    if (state.tab === 'configuration') await drawSettings();
    if (state.tab === 'completions') {
      const [run, step] = wantedSample();
      await samples.update(shown(), run, step, quiet);
    }
  });

  const load = (run, parts) => Promise.all([
    parts.includes('curves') ? run.figures.refresh() : undefined,
    parts.includes('notices') || parts.includes('state') ? Source.notices(run.id).then((found) => { run.notices = found; }) : undefined,
    parts.includes('comparisons') ? Source.comparisons(run.id).then((found) => { run.comparisons = found; }) : undefined,
  ]);

  const choose = async (id, yes) => {
    const next = yes ? [...state.selected, id] : state.selected.filter((one) => one !== id);
    if (next.length > 0) state.selected = next.sort((a, b) => a - b);
    await trying(() => Promise.all(shown().filter((run) => !run.loaded).map(async (run) => {
      await load(run, ['curves', 'notices', 'comparisons']);
      run.loaded = true;
    })));
    shown().forEach((run, index) => { run.index = index; });
    drawRuns();
    await draw();
  };

  const drawRuns = () => {
    const focused = document.activeElement?.closest?.('.runs') ? [...runList.querySelectorAll('input')].indexOf(document.activeElement) : -1;
    runList.replaceChildren(state.runs.length > 0 ? Panels.runs(state.runs, state.selected, choose) : el('p', { text: 'There is no run yet. This page shows it when it has made its first step.' }));
    runList.querySelectorAll('input')[focused]?.focus();
    document.title = shown().length === 1 ? `${shown()[0].name} · Tandem` : 'Tandem';
  };

  /** Names that are as short as they can be while no two runs have the same one. */
  const distinguish = (runs) => {
    const end = (run, parts) => run.path.split('/').slice(-parts).join('/');
    for (const run of runs) {
      const others = runs.filter((other) => other !== run);
      let parts = 2;
      while (parts < 12 && others.some((other) => end(other, parts) === end(run, parts))) parts += 1;
      run.name = end(run, parts);
    }
  };

  const listRuns = async () => {
    const found = await Source.runs();
    found.forEach((overview, id) => {
      const known = state.runs.find((run) => run.id === id);
      if (known) Object.assign(known, overview);
      else state.runs.push({ ...overview, id, index: 0, figures: new Figures(id) });
    });
    distinguish(state.runs);
    drawRuns();
    // The page begins with the run that goes on, else with the first.
    if (state.selected.length === 0 && state.runs.length > 0) {
      await choose((state.runs.find((run) => run.state === 'running') ?? state.runs[0]).id, true);
    }
  };

  const route = () => {
    const [name] = location.hash.slice(1).split('/');
    state.tab = Object.hasOwn(tabs, name) ? name : 'curves';
    Object.entries(tabs).forEach(([one, [, root]], at) => {
      root.hidden = one !== state.tab;
      if (one === state.tab) links[at].setAttribute('aria-current', 'page');
      else links[at].removeAttribute('aria-current');
    });
    draw();
  };

  window.addEventListener('hashchange', route);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', (event) => {
    view.scheme = event.matches;
    drawRuns();
    drawCurves();
  });

  await trying(async () => {
    await makeCharts();
    await listRuns();
  });
  route();
  document.documentElement.dataset.ready = 'yes';

  if (!Source.follow) {
    live.hidden = true;
    return;
  }
  let lost = false;
  const refresh = () => trying(async () => {
    await listRuns();
    await Promise.all(shown().map((run) => load(run, ['curves', 'notices', 'comparisons'])));
    await draw(true);
  });
  Source.follow((id, parts) => trying(async () => {
    const run = state.runs.find((one) => one.id === id);
    if (run && !state.selected.includes(id)) run.loaded = false;
    if (!run?.loaded) return;
    if (parts.includes('state')) await listRuns();
    await load(run, parts);
    run.steps = run.figures.steps.step.at(-1) ?? run.steps;
    drawRuns();
    await draw(true);
  }), (connected) => {
    live.textContent = connected ? 'live' : 'not connected';
    live.classList.toggle('lost', !connected);
    // What happened while the connection was lost.
    if (connected && lost) refresh();
    lost = !connected;
  });
  // Whoever waits for the first run sees it at once; others come when they come.
  let ticks = 0;
  setInterval(() => {
    ticks += 1;
    if (state.runs.length === 0 || ticks % 8 === 0) trying(listRuns);
  }, 2000);
})();
