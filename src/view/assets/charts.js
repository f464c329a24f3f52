'use strict';
// Curves over the steps or the time of runs, on uPlot.
const Charts = (() => {
  const { el, key } = Dom;
  // Lines differ by their dashes too, so that they can be told apart without colours.
  const DASHES = [[], [9, 5], [2, 4], [12, 4, 2, 4], [5, 5], [14, 6], [2, 2], [9, 3, 2, 3, 2, 3]];
  const COLORS = 8;
  // Distances between ticks: steps are whole, seconds are read as minutes and hours.
  const STEPS = Array.from({ length: 9 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();
  const SECONDS = [0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400, 604800];
  /** The dashes of the nth line. Every eighth has the same colour, so the dashes move on by one. */
  const dash = (index) => DASHES[(index + Math.floor(index / COLORS)) % DASHES.length];
  const color = (index) => getComputedStyle(document.documentElement).getPropertyValue(`--c${index % COLORS}`).trim();
  const faint = (of) => `color-mix(in srgb, ${of} 35%, transparent)`;
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Moving average of TensorBoard: exponential, without a bias to zero at the start. */
  const smooth = (values, weight) => {
    let [sum, norm] = [0, 0];
    return values.map((value) => {
      if (value === null || value === undefined) return value;
      sum = sum * weight + value * (1 - weight);
      norm = norm * weight + (1 - weight);
      return sum / norm;
    });
  };

  /** The part of a key that a family's braces stand for; '' for a metric of a fixed name, undefined for another metric. */
  const nameIn = (pattern, text) => {
    const [before, after] = pattern.split(/\{[^}]*\}/);
    if (after === undefined) return pattern === text ? '' : undefined;
    const fits = text.startsWith(before) && text.endsWith(after) && text.length > before.length + after.length;
    return fits ? text.slice(before.length, text.length - after.length) : undefined;
  };

  const ratio = (above, below) => above.map((value, at) => (value !== null && below[at] ? value / below[at] : null));

  /** Curves of a run in a chart: `{label, table, values, error}`. */
  const curvesOf = (declared, figures) => {
    const found = [];
    for (const curve of declared.curves) {
      const table = curve.evaluated ? figures.evaluations : figures.steps;
      if (curve.key === 'rollout/tokens_per_s') {
        const rate = ratio(table.column('completions/num_tokens'), table.column('step_time'));
        found.push({ label: 'whole step', table, values: rate });
      }
      for (const column of Object.keys(table.columns).sort()) {
        const name = nameIn(curve.key, column);
        if (name === undefined) continue;
        const error = curve.key === 'eval_accuracy' ? Object.keys(table.columns).find((other) => other.startsWith('avg_stderr@')) : undefined;
        found.push({ label: name || curve.label, table, values: table.column(column), error: error && table.column(error) });
      }
    }
    const shown = declared.logarithmic
      ? found.map((curve) => ({ ...curve, values: curve.values.map((value) => (value > 0 ? value : null)) }))
      : found;
    const some = shown.filter(({ values }) => values.some((value) => value !== null));
    const empty = declared.hidden_at_zero && some.every(({ values }) => values.every((value) => !value));
    return empty ? [] : some;
  };

  /** Parts of a sum, one upon the other; the largest is drawn first. Parts that nobody would see are left out. */
  const stack = (curves) => {
    const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);
    const all = curves.reduce((sum, { values }) => sum + total(values), 0);
    let below = [];
    const stacked = curves.filter(({ values }) => total(values) > 0.002 * all).map((curve, index) => {
      below = curve.values.map((value, at) => (value ?? 0) + (below[at] ?? 0));
      return { ...curve, raw: curve.values, values: below, index };
    });
    return stacked.reverse();
  };

  /** Everything that a chart shows: series with their places, looks and names. */
  const seriesOf = (declared, runs, view) => {
    const several = runs.length > 1;
    return runs.flatMap(({ figures, name, index }) => {
      const curves = curvesOf(declared, figures);
      if (declared.stacked && several) {
        const [first] = curves;
        if (!first) return [];
        const values = first.values.map((_, at) => curves.reduce((sum, curve) => sum + (curve.values[at] ?? 0), 0));
        return [{ ...first, values, label: name, color: color(index), dash: dash(index), figures }];
      }
      const list = declared.stacked ? stack(curves) : curves;
      return list.map((curve, at) => {
        const order = curve.index ?? at;
        const label = several ? (curves.length > 1 ? `${name}: ${curve.label}` : name) : curve.label;
        // Of several runs, each has its own colour, and no two lines of a chart the same dashes while there are enough.
        const look = several ? index + order * runs.length : order;
        return { ...curve, label, figures, color: color(several ? index : order), dash: dash(look) };
      });
    }).map((series) => ({ ...series, places: series.figures.places(series.table, view.axis) }));
  };

  /** One table of places and values, with what uPlot must know of each series. */
  const tableOf = (declared, series, view) => {
    const smoothed = declared.smooth && view.smoothing > 0;
    const tables = [];
    const looks = [{}];
    const bands = [];
    for (const one of series) {
      const { places, color: stroke, dash } = one;
      const columns = [];
      const add = (values, look) => {
        columns.push(values);
        looks.push({ stroke, dash, width: 2, spanGaps: false, ...look });
        return looks.length - 1;
      };
      if (one.error) {
        const about = (sign) => one.values.map((value, at) => (value === null ? null : value + sign * 1.96 * (one.error[at] ?? 0)));
        const quiet = { width: 0, points: { show: false } };
        bands.push({ series: [add(about(1), quiet), add(about(-1), quiet)], fill: faint(stroke) });
      }
      if (smoothed) add(one.values, { stroke: faint(stroke), dash: [], width: 1, points: { show: false } });
      const fill = one.raw ? `color-mix(in srgb, ${stroke} 70%, ${ink('--card')})` : undefined;
      add(smoothed ? smooth(one.values, view.smoothing) : one.values, { fill, of: one });
      tables.push(unique(places, columns));
    }
    return { data: tables.length > 1 ? uPlot.join(tables) : tables[0], looks, bands };
  };

  /** Places ascend and are each there once; of records of one place the last counts. */
  const unique = (places, columns) => {
    const kept = places.flatMap((place, at) => (at + 1 === places.length || place < places[at + 1] ? [at] : []));
    if (kept.length === places.length) return [places, ...columns];
    return [places, ...columns].map((values) => kept.map((at) => values[at]));
  };

  const nearest = (plot, series, at) => {
    const values = plot.data[series];
    for (let away = 0; away < 50; away += 1) {
      if (values[at - away] !== null && values[at - away] !== undefined) return at - away;
      if (values[at + away] !== null && values[at + away] !== undefined) return at + away;
    }
    return at;
  };

  /** A chart in a figure of its own. `view` is shared by all charts: axis, smoothing, window, and `zoom`, which changes it. */
  const create = (declared, view) => {
    const legend = el('ul', { class: 'legend' });
    const place = el('output', { class: 'place', 'aria-live': 'off' });
    const canvas = el('div', { class: 'plot', tabIndex: 0, role: 'img' });
    const figure = el('figure', { class: 'chart', hidden: true },
      el('figcaption', {}, el('h3', { text: declared.title }), place, el('p', { text: declared.note })), canvas, legend);
    let plot;
    let shape;
    let entries = [];

    const showValues = (u) => {
      const { idx } = u.cursor;
      const there = idx !== null && idx !== undefined && u.data[0][idx] !== undefined;
      const at = there ? u.data[0][idx] : undefined;
      place.textContent = !there ? '' : view.axis === 'step' ? `step ${Format.count(at)}` : Format.duration(at);
      for (const { series, value, of } of entries) {
        const index = there ? nearest(u, series, idx) : u.data[series].findLastIndex((one) => one !== null && one !== undefined);
        const below = of.raw && index >= 0 ? of.raw[index] : u.data[series][index];
        value.textContent = Format.number(below);
      }
    };

    const options = (looks, bands) => ({
      width: Math.max(canvas.clientWidth, 120),
      height: 200,
      series: looks,
      bands,
      legend: { show: false },
      cursor: {
        sync: { key: 'tandem' },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        dataIdx: (u, series, at) => (series === 0 ? at : nearest(u, series, at)),
        bind: { dblclick: () => () => view.zoom(null) },
      },
      scales: {
        x: { time: false, range: (_, low, high) => view.window(low, high) },
        y: declared.logarithmic ? { distr: 3 } : { range: (_, low, high) => around(low, high, declared.stacked) },
      },
      axes: [
        axis({ values: (_, splits, __, ___, step) => (view.axis === 'step' ? Format.ticks(splits, step) : Format.clock(splits, step)), space: 70,
          size: 28, incrs: view.axis === 'step' ? STEPS : SECONDS }),
        axis({
          size: (_, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((text) => text?.length ?? 0)),
          values: (_, splits, __, ___, step) => (declared.logarithmic ? splits.map(decade) : Format.ticks(splits, step)),
          ...(declared.logarithmic ? { filter: (_, splits) => decades(splits) } : {}),
        }),
      ],
      hooks: {
        setCursor: [showValues],
        setSelect: [(u) => {
          if (u.select.width < 6) return;
          view.zoom([u.posToVal(u.select.left, 'x'), u.posToVal(u.select.left + u.select.width, 'x')]);
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    });

    const update = (runs) => {
      const series = seriesOf(declared, runs, view);
      figure.hidden = series.length === 0;
      if (figure.hidden) return;
      const { data, looks, bands } = tableOf(declared, series, view);
      const now = JSON.stringify([view.axis, view.scheme, looks.map(({ stroke, dash, of }) => [stroke, dash, of?.label])]);
      if (plot && shape === now) {
        looks.forEach(({ of }, at) => entries.filter((entry) => entry.series === at).forEach((entry) => { entry.of = of; }));
        plot.setData(data);
      } else {
        shape = now;
        plot?.destroy();
        plot = new uPlot(options(looks, bands), data, canvas);
        entries = looks.flatMap(({ of }, at) => (of ? [{ series: at, of, value: el('b') }] : []));
        if (declared.stacked) entries.reverse();
        legend.replaceChildren(...entries.map(({ of, value }) =>
          el('li', {}, key(of.color, of.dash), el('span', { text: Format.visible(of.label), dir: 'auto' }), value)));
      }
      showValues(plot);
      canvas.setAttribute('aria-label', `${declared.title}, ${declared.note}. ${entries.map(({ of, value }) => `${of.label}: ${value.textContent}`).join('; ')}. Arrow keys move along the curve.`);
    };

    const moveTo = (index) => {
      const at = Math.min(Math.max(index, 0), plot.data[0].length - 1);
      plot.setCursor({ left: plot.valToPos(plot.data[0][at], 'x'), top: plot.bbox.height / devicePixelRatio / 2 });
    };
    // All charts follow one pointer; only the one that has the focus is heard.
    canvas.addEventListener('focus', () => place.setAttribute('aria-live', 'polite'));
    canvas.addEventListener('blur', () => place.setAttribute('aria-live', 'off'));
    canvas.addEventListener('keydown', (event) => {
      if (!plot) return;
      const [low, high] = [plot.scales.x.min, plot.scales.x.max];
      const middle = plot.cursor.idx ?? plot.data[0].length - 1;
      const zoomed = (factor) => {
        const center = plot.data[0][middle];
        view.zoom([center - (center - low) * factor, center + (high - center) * factor]);
      };
      const far = event.shiftKey ? 10 : 1;
      const does = {
        ArrowLeft: () => moveTo(middle - far), ArrowRight: () => moveTo(middle + far),
        Home: () => moveTo(0), End: () => moveTo(plot.data[0].length - 1),
        '+': () => zoomed(0.5), '-': () => zoomed(2), 0: () => view.zoom(null), Escape: () => view.zoom(null),
      }[event.key];
      if (does) {
        event.preventDefault();
        does();
      }
    });
    // uPlot listens to the mouse alone.
    const touched = (event) => {
      if (event.pointerType !== 'touch' || !plot) return;
      const box = plot.over.getBoundingClientRect();
      plot.setCursor({ left: event.clientX - box.left, top: event.clientY - box.top });
    };
    canvas.addEventListener('pointerdown', touched);
    canvas.addEventListener('pointermove', touched);

    const resize = () => plot?.setSize({ width: Math.max(canvas.clientWidth, 120), height: 200 });
    new ResizeObserver(resize).observe(canvas);
    return { figure, update };
  };

  const decade = (value) => (value === null ? '' : `1e${Math.round(Math.log10(value))}`.replace('-', '−'));

  /** Powers of ten among the ticks of a logarithmic axis, as many as have room; the others become null. */
  const decades = (splits) => {
    const powers = splits.map((value) => Math.log10(value)).map((power) => (Math.abs(power - Math.round(power)) < 1e-6 ? Math.round(power) : null));
    const whole = powers.filter((power) => power !== null);
    const every = Math.max(1, Math.ceil(whole.length / 7));
    return splits.map((value, at) => (powers[at] !== null && powers[at] % every === 0 ? value : null));
  };

  /** A little room above and below; sums begin at zero. */
  const around = (low, high, fromZero) => {
    if (low === null || low === undefined) return [0, 1];
    // Smoothing leaves differences of rounding between equal values, too small for any tick between them.
    const flat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
    const size = (flat ? Math.abs(high) : high - low) || 1;
    return [fromZero ? 0 : low - 0.06 * size, high + 0.06 * size];
  };

  const axis = (more) => ({
    stroke: () => ink('--soft'), grid: { stroke: () => ink('--rule'), width: 1, ...(more.filter ? { filter: more.filter } : {}) }, ticks: { show: false },
    font: '12px system-ui, sans-serif', ...more,
  });

  return { create, color, ink, dash };
})();
