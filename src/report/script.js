// The values under the pointer, for every chart of the page.
for (const figure of document.querySelectorAll('.chart')) {
  const svg = figure.querySelector('svg');
  const cursor = figure.querySelector('.cursor');
  const data = JSON.parse(figure.dataset.series);
  const tip = figure.appendChild(document.createElement('div'));
  tip.className = 'tip';
  const format = (value) =>
    value === null ? '–' : Math.abs(value) >= 1e-3 && Math.abs(value) < 1e6 || value === 0 ? String(+value.toPrecision(4)) : value.toExponential(2);
  const row = (name, value) => {
    const line = tip.appendChild(document.createElement('div'));
    line.appendChild(document.createElement('span')).textContent = name;
    line.appendChild(document.createElement('b')).textContent = value;
  };
  const nearest = (points, step) =>
    points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const span = Math.max(data.high - data.low, 1e-9);
    const wanted = ((event.clientX - box.left) / box.width * data.width - data.left) / (data.right - data.left);
    const step = nearest(data.series[0].points, data.low + wanted * span)[0];
    const x = data.left + (step - data.low) / span * (data.right - data.left);
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    cursor.style.visibility = 'visible';
    tip.replaceChildren();
    row('step', step);
    for (const series of data.series) row(series.name, format(nearest(series.points, step)[1]));
    tip.style.display = 'block';
    const left = x / data.width * box.width + svg.offsetLeft;
    const flip = left + tip.offsetWidth + 16 > figure.clientWidth;
    tip.style.left = (flip ? left - tip.offsetWidth - 12 : left + 12) + 'px';
    tip.style.top = svg.offsetTop + 8 + 'px';
  });
  svg.addEventListener('pointerleave', () => {
    cursor.style.visibility = 'hidden';
    tip.style.display = 'none';
  });
}
