'use strict';
// What sampler and learner do over the time of a run: who waits for whom.
const Lanes = (() => {
  const { el } = Dom;
  const HEIGHT = 46;
  const GAP = 22;
  const BIN = 3;
  const PARTS = [['work', 'at work'], ['swap', 'publishing or taking over weights'], ['wait', 'waiting for the other']];

  /** Seconds of each part for a record of each half. */
  const partsOf = (table) => {
    const value = (key, at) => table.column(key)[at] ?? 0;
    return {
      sampler: (at) => {
        const swap = value('rollout/swap_stall_s', at);
        return { work: Math.max(value('rollout/busy_s', at) - swap, 0), swap, wait: value('rollout/idle_s', at) };
      },
      learner: (at) => {
        const [wait, swap] = [value('perf/rollout_wait_s', at), value('perf/publish_s', at)];
        return { work: Math.max(value('step_time', at) - wait - swap, 0), swap, wait };
      },
    };
  };

  const sum = (a, b) => ({ work: a.work + b.work, swap: a.swap + b.swap, wait: a.wait + b.wait });
  const NOTHING = { work: 0, swap: 0, wait: 0 };

  const create = (view) => {
    const canvas = el('canvas', { tabIndex: 0, role: 'img' });
    const words = el('output', { 'aria-live': 'off' });
    const legend = el('ul', { class: 'legend' }, ...PARTS.map(([name, text]) => el('li', {}, el('i', { class: `part ${name}` }), el('span', { text }))));
    const title = el('h3');
    const figure = el('figure', { class: 'chart', hidden: true },
      el('figcaption', {}, title, words, el('p', { text: 'shares of the time of each stretch of steps' })), canvas, legend);
    let run;
    let bins = [];
    let cursor;

    /** Sums up the records of each stretch. */
    const gather = () => {
      const { steps: table } = run.figures;
      const places = run.figures.places(table, view.axis);
      const width = Math.max(canvas.clientWidth, 120);
      const [low, high] = view.window(places[0], places.at(-1));
      const parts = partsOf(table);
      const count = Math.max(1, Math.min(Math.floor(width / BIN), places.filter((place) => place >= low && place <= high).length));
      bins = Array.from({ length: count }, () => ({ sampler: NOTHING, learner: NOTHING, first: Infinity, last: 0 }));
      places.forEach((place, at) => {
        if (place < low || place > high) return;
        const bin = bins[Math.min(count - 1, Math.floor(((place - low) / (high - low || 1)) * count))];
        bin.sampler = sum(bin.sampler, parts.sampler(at));
        bin.learner = sum(bin.learner, parts.learner(at));
        bin.first = Math.min(bin.first, table.step[at]);
        bin.last = Math.max(bin.last, table.step[at]);
      });
    };

    const draw = () => {
      const width = Math.max(canvas.clientWidth, 120);
      const count = bins.length;
      const scale = devicePixelRatio || 1;
      canvas.width = width * scale;
      canvas.height = (2 * HEIGHT + GAP + 18) * scale;
      canvas.style.height = `${2 * HEIGHT + GAP + 18}px`;
      const context = canvas.getContext('2d');
      context.scale(scale, scale);
      context.font = '12px system-ui, sans-serif';
      const colors = { work: Charts.ink('--c0'), swap: Charts.ink('--c3'), wait: Charts.ink('--waiting') };
      ['sampler', 'learner'].forEach((half, row) => {
        const top = 16 + row * (HEIGHT + GAP);
        context.fillStyle = Charts.ink('--soft');
        context.fillText(half, 0, top - 4);
        bins.forEach((bin, at) => {
          const whole = bin[half].work + bin[half].swap + bin[half].wait;
          if (whole <= 0) return;
          let bottom = top + HEIGHT;
          for (const [name] of PARTS) {
            const part = (bin[half][name] / whole) * HEIGHT;
            context.fillStyle = colors[name];
            context.fillRect((at * width) / count, bottom - part, width / count + 0.5, part);
            bottom -= part;
          }
        });
      });
      if (cursor !== undefined) {
        context.fillStyle = Charts.ink('--ink');
        context.fillRect(((cursor + 0.5) * width) / count, 16, 1, 2 * HEIGHT + GAP);
      }
      tell();
    };

    const tell = () => {
      const all = cursor === undefined ? bins : [bins[Math.min(cursor, bins.length - 1)]];
      const share = (half) => {
        const total = all.map((bin) => bin[half]).reduce(sum, NOTHING);
        const whole = total.work + total.swap + total.wait;
        return whole > 0 ? Format.percent(Number((total.wait / whole).toPrecision(2))) : '–';
      };
      const where = cursor === undefined || !all[0].last ? '' : all[0].first === all[0].last ? `step ${all[0].first}: ` : `steps ${all[0].first} to ${all[0].last}: `;
      words.textContent = `${where}sampler waits ${share('sampler')}, learner ${share('learner')}`;
      canvas.setAttribute('aria-label', `Who waits for whom. ${words.textContent}. Arrow keys move along the time.`);
    };

    const point = (to) => {
      cursor = to === undefined ? undefined : Math.min(Math.max(to, 0), bins.length - 1);
      draw();
    };
    const pointed = (event) => {
      const box = canvas.getBoundingClientRect();
      point(Math.floor(((event.clientX - box.left) / box.width) * bins.length));
    };
    canvas.addEventListener('pointermove', pointed);
    canvas.addEventListener('pointerdown', pointed);
    canvas.addEventListener('pointerleave', () => point(undefined));
    canvas.addEventListener('keydown', (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) {
        event.preventDefault();
        point((cursor ?? bins.length) + by);
      }
    });
    // Only whoever moves along it by keys hears what it says.
    canvas.addEventListener('focus', () => words.setAttribute('aria-live', 'polite'));
    canvas.addEventListener('blur', () => words.setAttribute('aria-live', 'off'));
    const renew = () => {
      gather();
      draw();
    };
    new ResizeObserver(() => !figure.hidden && renew()).observe(figure);

    const update = (shown, several) => {
      run = shown;
      figure.hidden = run.figures.steps.column('step_time').length === 0;
      title.textContent = several ? `Who waits for whom: ${Format.visible(run.name)}` : 'Who waits for whom';
      if (!figure.hidden) renew();
    };
    return { figure, update };
  };

  return { create };
})();
