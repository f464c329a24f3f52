'use strict';
// Finds any metric of the shown runs that no chart shows, to draw it.
const Picker = (() => {
  const { el } = Dom;

  /** A list that is opened and searched. `add(key)` is told of a choice. */
  const create = (add) => {
    let keys = [];
    const status = el('p', { class: 'soft', role: 'status' });
    const list = el('ul', { class: 'choices' });
    const search = el('input', { type: 'search', placeholder: 'part of a name', 'aria-label': 'Search metrics', on: {
      input: () => draw(),
      keydown: (event) => {
        const first = list.querySelector('button');
        if (event.key === 'Enter' && first) first.click();
      },
    } });
    const root = el('details', { class: 'picker', on: {
      toggle: () => root.open && search.focus(),
      keydown: (event) => {
        if (event.key !== 'Escape' || !root.open) return;
        root.open = false;
        root.firstChild.focus();
      },
    } }, el('summary', { text: 'Draw another metric' }), el('div', { class: 'card choose' }, search, list, status));

    const draw = () => {
      const words = search.value.toLowerCase().split(/\s+/);
      const found = keys.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
      list.replaceChildren(...found.map((name) => el('li', {}, el('button', { type: 'button', dir: 'auto', text: Format.visible(name), on: {
        click: () => {
          root.open = false;
          search.value = '';
          add(name);
        },
      } }))));
      status.textContent = found.length > 0 ? '' : keys.length > 0 ? 'No metric has these words.' : 'Every metric is drawn.';
    };

    /** The metrics that can be drawn. */
    const update = (now) => {
      root.hidden = now.length === 0 && keys.length === 0;
      if (now.join() === keys.join()) return;
      keys = now;
      draw();
    };
    root.hidden = true;
    return { root, update };
  };

  return { create };
})();
