'use strict';
// Numbers and texts as people read them.
const Format = (() => {
  /** Digits after the point that a step between ticks needs, so that none is shown as another number than it is. */
  const decimals = (increment) => {
    for (let digits = 0; digits <= 15; digits += 1) {
      const scaled = increment * 10 ** digits;
      if (Math.abs(scaled - Math.round(scaled)) < 1e-6 * scaled) return digits;
    }
    return 15;
  };

  /** Ticks of an axis, `increment` apart. */
  const ticks = (values, increment) => {
    const largest = Math.max(...values.map(Math.abs));
    const digits = decimals(increment);
    if (largest > 0 && (largest < 1e-4 || largest >= 1e6)) {
      const significant = Math.max(0, Math.floor(Math.log10(largest)) + digits);
      return values.map((value) => (value === 0 ? '0' : shorten(value.toExponential(Math.min(significant, 6)))));
    }
    const exact = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return values.map((value) => (value === 0 ? 0 : value).toLocaleString('en-US', exact).replace('-', '−'));
  };

  const shorten = (text) => text.replace(/\.?0+e/, 'e').replace('e+', 'e').replaceAll('-', '−');

  /** A value, with four digits. */
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return '–';
    const size = Math.abs(value);
    if (value === 0 || (size >= 1e-3 && size < 1e6)) {
      return Number(value.toPrecision(4)).toLocaleString('en-US', { maximumFractionDigits: 12 }).replace('-', '−');
    }
    return shorten(value.toExponential(2));
  };

  /** A value whose sign says which way it goes. */
  const signed = (value) => `${value > 0 ? '+' : ''}${number(value)}`;

  const count = (value) => Math.round(value).toLocaleString('en-US');

  const percent = (share) => `${number(100 * share)} %`;

  const bytes = (value) => {
    const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
    const at = Math.min(Math.max(Math.floor(Math.log10(Math.max(value, 1)) / 3), 0), units.length - 1);
    return `${Number((value / 1000 ** at).toPrecision(3))} ${units[at]}`;
  };

  const duration = (seconds) => {
    const whole = Math.round(seconds);
    const two = (n) => String(n).padStart(2, '0');
    if (whole < 60) return `${seconds.toFixed(1)} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  };

  /** A time in seconds since 1970, in the reader's time zone. */
  const date = (seconds) => {
    if (seconds === null || seconds === undefined) return '–';
    const at = new Date(1000 * seconds);
    const year = at.getFullYear() === new Date().getFullYear() ? {} : { year: 'numeric' };
    return at.toLocaleString('en-GB', { day: 'numeric', month: 'short', ...year, hour: '2-digit', minute: '2-digit' });
  };

  /** Ticks of an axis of seconds. */
  const clock = (values, increment) => values.map((value) => {
    const [hours, minutes, seconds] = [Math.floor(value / 3600), Math.floor((value % 3600) / 60), value % 60];
    if (increment >= 60) return hours > 0 ? `${hours}:${String(minutes).padStart(2, '0')} h` : `${minutes} min`;
    return hours + minutes > 0 ? `${hours * 60 + minutes}:${seconds.toFixed(0).padStart(2, '0')}` : `${Number(seconds.toFixed(3))} s`;
  });

  // Controls of the terminal and of the direction of text move what stands around them, or are not seen.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

  /** A text whose invisible characters are seen. */
  const visible = (text) => text.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? '\u2421' : `\u27e8${code.toString(16).toUpperCase().padStart(4, '0')}\u27e9`;
  });

  return { ticks, number, signed, count, percent, bytes, duration, date, clock, visible };
})();
