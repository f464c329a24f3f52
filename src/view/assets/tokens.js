'use strict';
// A completion, opened: what it earned, its texts, and its tokens coloured by what both halves say of them.
const Tokens = (() => {
  const { el, labelled, select } = Dom;

  const WAYS = [
    ['difference', 'difference of log-probs (learner − sampler)'],
    ['entropy', 'entropy of the learner'],
    ['clipped', 'clipping and masking'],
    ['advantage', 'advantage'],
    ['none', 'nothing'],
  ];

  const at = (values, index) => (values.length === 1 ? values[0] : values[index]);

  /** Figures of the tokens, one list for each way of colouring. */
  const figuresOf = (tokens) => {
    const marks = Object.entries(tokens.marks).map(([name, all]) => [name, new Set(all)]);
    const marked = tokens.tokens.map((_, index) => marks.filter(([, all]) => all.has(index)).map(([name]) => name));
    const difference = tokens.tokens.map((_, index) => {
      const [sampler, learner] = [tokens.sampler[index] ?? null, tokens.learner[index] ?? null];
      return sampler === null || learner === null ? null : learner - sampler;
    });
    return { marked, difference, entropy: tokens.entropy, advantage: tokens.advantages, clipped: marked.map((names) => (names.length > 0 ? 1 : 0)), none: [] };
  };

  // Differences of a correct pair are tiny; of a wrong one they are not. So the scale is fixed where it means something.
  const LARGEST = { difference: 0.5, entropy: undefined, advantage: undefined, clipped: 1 };

  // A smaller share of the scale is no colour that anybody sees.
  const SEEN = 0.004;

  /** How the tokens are coloured at first: by what tells something of them. Where sampler and learner agree, their difference does not. */
  const firstWay = (figures) => {
    const sizes = (way) => figures[way].filter((value) => Number.isFinite(value)).map(Math.abs);
    if (sizes('difference').some((size) => size >= SEEN * LARGEST.difference)) return 'difference';
    return ['entropy', 'advantage'].find((way) => sizes(way).some((size) => size > 0)) ?? 'difference';
  };

  const colour = (spans, values, way) => {
    const finite = values.filter((value) => Number.isFinite(value)).map(Math.abs);
    const largest = LARGEST[way] ?? Math.max(1e-9, ...finite);
    spans.forEach((span, index) => {
      const value = values[index];
      const share = Number.isFinite(value) ? Math.min(Math.abs(value) / largest, 1) : 0;
      span.style.backgroundColor = share < SEEN ? '' : `color-mix(in srgb, var(${value < 0 ? '--low' : '--high'}) ${Math.round(12 + 50 * share)}%, transparent)`;
      // Not by colour alone: what is below zero has a line below it.
      span.classList.toggle('below', share >= SEEN && value < 0);
    });
    return largest;
  };

  // Without an owner mask the policy has sampled them all.
  const isGiven = (tokens, index) => tokens.owner?.[index] === 0;

  /** Which conversation of an agent a token is in, where there are several. */
  const branchOf = ({ branches = [] }, index) =>
    (branches.length > 0 ? `, branch ${1 + branches.filter((first) => first <= index).length} of ${branches.length + 1}` : '');

  const versionOf = (tokens, index) => tokens.versions.findLast(([first]) => first <= index)?.[1];

  const view = (tokens) => {
    const figures = figuresOf(tokens);
    const readout = el('output', { class: 'readout', text: 'Choose a token, with the pointer or the arrow keys.' });
    const scale = el('span', { class: 'soft' });
    const spans = tokens.tokens.map((id, index) => {
      const piece = tokens.pieces?.[index];
      // Special tokens and parts of characters have no text.
      const text = piece ? Format.visible(piece).replaceAll('\n', '⏎\n') : `⟨${id}⟩`;
      const owner = isGiven(tokens, index) ? 'token given' : 'token';
      return el('span', { class: owner, tabIndex: index === 0 ? 0 : -1, text });
    });
    const places = new Map(spans.map((span, index) => [span, index]));
    const placeOf = (element) => places.get(element) ?? -1;
    let chosen;
    const choose = (index) => {
      if (index < 0 || index === chosen) return;
      spans[chosen ?? 0].tabIndex = -1;
      spans[index].tabIndex = 0;
      chosen = index;
      const name = `token ${index + 1} of ${tokens.tokens.length + tokens.left_out}: id ${tokens.tokens[index]}${branchOf(tokens, index)}`;
      if (isGiven(tokens, index)) {
        readout.textContent = `${name} · given to the policy, not sampled`;
        return;
      }
      const facts = [
        name,
        `sampler ${Format.number(tokens.sampler[index])}`, `learner ${Format.number(tokens.learner[index])}`,
        `difference ${Format.number(figures.difference[index])}`, `entropy ${Format.number(tokens.entropy[index])}`,
        `advantage ${Format.number(tokens.advantages[index])}`,
      ];
      if (tokens.weights.length > 0) facts.push(`weight ${Format.number(at(tokens.weights, index))}`);
      if (versionOf(tokens, index) !== undefined) facts.push(`version ${versionOf(tokens, index)}`);
      facts.push(...figures.marked[index].map((name) => `counted in ${name}`));
      readout.textContent = facts.join(' · ');
    };
    const text = el('div', { class: 'text tokens', dir: 'auto', on: {
      focusin: (event) => choose(placeOf(event.target)),
      pointermove: (event) => choose(placeOf(event.target)),
      click: (event) => places.has(event.target) && event.target.focus(),
      keydown: (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
        const to = placeOf(event.target) + (by ?? 0);
        if (by && spans[to]) {
          event.preventDefault();
          spans[to].focus();
        }
      },
    } }, ...spans);
    const paint = (way) => {
      const largest = colour(spans, figures[way], way);
      scale.textContent = way === 'none' ? '' : way === 'clipped'
        ? (figures.clipped.includes(1) ? 'filled: clipped or masked' : 'no token was clipped or masked')
        : `full colour at ${Format.number(largest)} and above; underlined below zero`;
      if (way !== 'difference' && way === first) scale.textContent = `sampler and learner agree; ${scale.textContent}`;
    };
    const first = firstWay(figures);
    paint(first);
    const left = tokens.left_out > 0 ? el('p', { class: 'soft', text: `${Format.count(tokens.left_out)} more tokens are not shown.` }) : undefined;
    return el('section', {}, el('h3', { text: 'Tokens' }),
      el('div', { class: 'controls' }, labelled('Colour by', select(WAYS, first, paint)), scale), readout, text, left);
  };

  // How chat templates of the known families mark turns.
  const TURNS = [
    [/<\|im_start\|>([^\n<]*)\n/g, /<\|im_end\|>\s*$/],
    [/<\|start_header_id\|>([^\n<]*)<\|end_header_id\|>\s*/g, /<\|eot_id\|>\s*$/],
    [/<start_of_turn>([^\n<]*)\n/g, /<end_of_turn>\s*$/],
    [/<\|(system|user|assistant)\|>\s*/g, /<\|(end|endoftext)\|>\s*$|<\/s>\s*$/],
    [/<｜(User|Assistant)｜>/g, /<｜end▁of▁sentence｜>\s*$/],
    [/\[(INST|\/INST)\]\s*/g, /<\/s>\s*$/],
  ];

  /** A prompt as turns of a conversation, or undefined if it is plain text. */
  const turnsOf = (prompt) => {
    for (const [begin, end] of TURNS) {
      const marks = [...prompt.matchAll(begin)];
      if (marks.length === 0) continue;
      return marks.map((mark, index) => ({
        role: ({ INST: 'user', '/INST': 'assistant' })[mark[1]] ?? (mark[1].trim().toLowerCase() || 'turn'),
        text: prompt.slice(mark.index + mark[0].length, marks[index + 1]?.index).replace(end, ''),
      }));
    }
    return undefined;
  };

  const textBlock = (text) => el('div', { class: 'text', dir: 'auto', tabIndex: 0, text: Format.visible(text) });

  const prompt = (text) => {
    const turns = turnsOf(text)?.filter((turn, at, all) => turn.text.trim() !== '' || at + 1 < all.length);
    if (!turns || turns.length === 0) return textBlock(text);
    const raw = el('details', {}, el('summary', { text: 'as the model reads it' }), textBlock(text));
    return el('div', { class: 'turns' }, ...turns.map((turn) =>
      el('div', { class: `turn ${turn.role === 'user' ? 'user' : ''}` }, el('b', { text: Format.visible(turn.role) }), textBlock(turn.text))), raw);
  };

  const callText = ({ function: called }) => `${called?.name ?? ''} ${JSON.stringify(called?.arguments ?? {})}`;
  const contentText = (content) => (Array.isArray(content) ? content.map((part) => part.text ?? '').join('') : content ?? '');

  /** The messages of a conversation with tools, those that were given to the policy apart from its own. */
  const messages = ({ opening, messages: all, branch_messages: branches, reward }) => {
    const block = (title, given, ...parts) => el('div', { class: `turn ${given ? 'user' : ''}` }, el('b', { dir: 'auto', text: Format.visible(title) }), ...parts);
    const shown = all.map((message) => {
      const calls = (message.tool_calls ?? []).map((call) => el('div', { class: 'value' }, el('b', { text: 'calls' }), textBlock(callText(call))));
      const text = contentText(message.content);
      const words = text !== '' || calls.length === 0 ? [textBlock(text)] : [];
      const given = message.role !== 'assistant';
      return block(given ? `${message.role} ${message.name ?? ''}` : 'policy', given, ...words, ...calls);
    });
    // Each conversation of an agent has a heading of its own.
    let first = 0;
    const headed = (branches ?? []).flatMap((count, index) => {
      const own = shown.slice(first, first += count);
      return [el('p', { class: 'soft', text: `Branch ${index + 1} of ${branches.length}, with the reward ${Format.number(reward)} that all of them share` }), ...own];
    });
    const parts = [...headed, ...shown.slice(first)];
    return opening ? [block('environment, in the prompt', true, textBlock(opening)), ...parts] : parts;
  };

  return { view, prompt, messages, textBlock, turnsOf };
})();
