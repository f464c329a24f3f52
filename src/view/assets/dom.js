'use strict';
// Elements. They are made of text, never of markup: prompts, completions and names are anybody's.
const Dom = (() => {
  /**
   * An element. `properties` are attributes, but for `text`, `on` (listeners by event) and those that are no strings, which are
   * set as properties.
   */
  const el = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === undefined || value === null) continue;
      if (name === 'text') element.textContent = value;
      else if (name === 'on') for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
      else if (typeof value === 'string') element.setAttribute(name, value);
      else element[name] = value;
    }
    element.append(...children.filter((child) => child !== undefined && child !== null));
    return element;
  };

  const svg = (tag, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  /** A short line as a series is drawn, for its name in a legend. */
  const key = (color, dash) => {
    const box = svg('svg', { width: 26, height: 10, viewBox: '0 0 26 10', 'aria-hidden': 'true', class: 'key' });
    box.append(svg('line', { x1: 1, y1: 5, x2: 25, y2: 5, 'stroke-width': 3, 'stroke-dasharray': dash.join(' ') }));
    box.firstChild.style.stroke = color;
    return box;
  };

  /** A labelled control. */
  const labelled = (text, control, more) => el('label', { class: 'control' }, el('span', { text }), control, more);

  /** A select of `[value, text]` pairs. */
  const select = (pairs, value, change) => {
    const options = pairs.map(([of, text]) => el('option', { value: String(of), text, selected: of === value }));
    const element = el('select', { on: { change: () => change(element.value) } }, ...options);
    return element;
  };

  return { el, key, labelled, select };
})();
