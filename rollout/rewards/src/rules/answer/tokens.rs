//! Answers as tokens: what LaTeX writes in many ways becomes one.

use super::looks;

/// Longest answer that is looked into, in bytes.
pub(super) const MAX_BYTES: usize = 400;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits with at most one point, without thousands separators. `grouped` says that these were commas or spaces.
    Number { text: String, grouped: bool },
    /// Letters that stand together.
    Word(String),
    /// The content of `\text{…}` and its kin, trimmed.
    Text(String),
    /// A LaTeX command, without the backslash. `\{` and `\}` are among them.
    Command(String),
    /// Any other character.
    Symbol(char),
}

impl Token {
    pub fn is(&self, symbol: char) -> bool {
        *self == Self::Symbol(symbol)
    }

    pub fn is_command(&self, name: &str) -> bool {
        matches!(self, Self::Command(command) if command == name)
    }
}

/// The tokens of an answer; `None` when it is too long or has an unclosed text.
pub(super) fn tokens(answer: &str) -> Option<Vec<Token>> {
    if answer.len() > MAX_BYTES {
        return None;
    }
    let answer = looks::bare(answer);
    let mut tokens = Vec::new();
    read(&answer, &mut tokens)?;
    // Line breaks, a comma that ends a clause, and a space that the end of the text has cut.
    while tokens.last().is_some_and(|token| token.is_command("\\") || token.is_command("") || token.is(',')) {
        tokens.pop();
    }
    if tokens.first().is_some_and(|token| token.is('=')) {
        tokens.remove(0);
    }
    Some(without_ordinals(tokens))
}

/// Appends the tokens of a piece of LaTeX.
fn read(text: &str, tokens: &mut Vec<Token>) -> Option<()> {
    let mut rest = text.chars().peekable();
    while let Some(&c) = rest.peek() {
        if c.is_ascii_digit() || c == '.' {
            tokens.push(number(&mut rest));
            continue;
        }
        if c.is_alphabetic() && !matches!(c, 'π') {
            let word = take(&mut rest, |c| c.is_alphabetic() && c != 'π');
            push_words(&word, Token::Word, tokens);
            continue;
        }
        rest.next();
        match c {
            '\\' => command(&mut rest, tokens)?,
            c if c.is_whitespace() => {}
            '$' | '£' | '€' | '¥' | '₹' | '~' => {}
            '−' | '–' => tokens.push(Token::Symbol('-')),
            '×' | '·' | '∙' => tokens.push(Token::Symbol('*')),
            '÷' | '\u{2044}' => tokens.push(Token::Symbol('/')),
            'π' => tokens.push(Token::Command("pi".into())),
            '√' => tokens.push(Token::Command("sqrt".into())),
            '∞' => tokens.push(Token::Command("infty".into())),
            '∪' => tokens.push(Token::Command("cup".into())),
            '∈' => tokens.push(Token::Command("in".into())),
            '∅' => tokens.push(Token::Command("emptyset".into())),
            '≥' | '⩾' => tokens.push(Token::Command("ge".into())),
            '≤' | '⩽' => tokens.push(Token::Command("le".into())),
            '>' if rest.next_if_eq(&'=').is_some() => tokens.push(Token::Command("ge".into())),
            '<' if rest.next_if_eq(&'=').is_some() => tokens.push(Token::Command("le".into())),
            '≈' => tokens.push(Token::Symbol('=')),
            '°' => tokens.push(Token::Word("degrees".into())),
            '*' if rest.next_if_eq(&'*').is_some() => tokens.push(Token::Symbol('^')),
            c => match looks::fraction(c) {
                Some((top, bottom)) => push_fraction(top, bottom, tokens),
                None if looks::raised(c).is_some() => push_raised(c, &mut rest, tokens),
                None => tokens.push(Token::Symbol(c)),
            },
        }
    }
    Some(())
}

fn push_number(digits: impl Into<String>, tokens: &mut Vec<Token>) {
    tokens.push(Token::Number { text: digits.into(), grouped: false });
}

fn push_fraction(top: &str, bottom: &str, tokens: &mut Vec<Token>) {
    tokens.push(Token::Command("frac".into()));
    for part in [top, bottom] {
        tokens.push(Token::Symbol('{'));
        push_number(part, tokens);
        tokens.push(Token::Symbol('}'));
    }
}

/// `x²`, `10⁻³`.
fn push_raised(first: char, rest: &mut Rest<'_>, tokens: &mut Vec<Token>) {
    let raised = format!("{first}{}", take(rest, |c| looks::raised(c).is_some()));
    let mut digits: String = raised.chars().filter_map(looks::raised).collect();
    tokens.extend([Token::Symbol('^'), Token::Symbol('{')]);
    if let Some(positive) = digits.strip_prefix('-') {
        digits = positive.to_owned();
        tokens.push(Token::Symbol('-'));
    }
    push_number(digits, tokens);
    tokens.push(Token::Symbol('}'));
}

/// Words as one token; `million` and its kin behind a number are a factor.
fn push_words(words: &str, token: impl Fn(String) -> Token, tokens: &mut Vec<Token>) {
    let (first, others) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let behind_number = tokens.last().is_some_and(|last| matches!(last, Token::Number { .. } | Token::Symbol('}')));
    let words = match looks::multiple(first).filter(|_| behind_number) {
        Some(zeros) => {
            tokens.push(Token::Symbol('*'));
            push_number(format!("1{}", "0".repeat(zeros)), tokens);
            others.trim()
        }
        None => words,
    };
    if !words.is_empty() {
        tokens.push(token(words.to_owned()));
    }
}

/// Without the endings of ordinals: `5th` and `5^{\text{th}}` are 5.
fn without_ordinals(tokens: Vec<Token>) -> Vec<Token> {
    let ending = |token: &Token| {
        matches!(token, Token::Word(word) | Token::Text(word)
            if ["st", "nd", "rd", "th"].contains(&word.to_lowercase().as_str()))
    };
    let mut kept: Vec<Token> = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some((token, after)) = rest.split_first() {
        let whole = matches!(kept.last(), Some(Token::Number { text, .. }) if !text.contains('.'));
        rest = match rest {
            [raised, open, word, close, after @ ..]
                if whole && raised.is('^') && open.is('{') && close.is('}') && ending(word) =>
            {
                after
            }
            [raised, word, after @ ..] if whole && raised.is('^') && ending(word) => after,
            [word, after @ ..] if whole && ending(word) => after,
            _ => {
                kept.push(token.clone());
                after
            }
        };
    }
    kept
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn take(rest: &mut Rest<'_>, wanted: impl Fn(char) -> bool) -> String {
    let mut text = String::new();
    while let Some(c) = rest.next_if(|&c| wanted(c)) {
        text.push(c);
    }
    text
}

fn command(rest: &mut Rest<'_>, tokens: &mut Vec<Token>) -> Option<()> {
    let mut name = take(rest, |c| c.is_ascii_alphabetic());
    if name.is_empty() {
        name.extend(rest.next());
    }
    match name.as_str() {
        "frac" | "dfrac" | "tfrac" | "cfrac" | "nicefrac" | "sfrac" | "flatfrac" => {
            tokens.push(Token::Command("frac".into()));
            digits(rest, tokens, 2);
        }
        "sqrt" => {
            tokens.push(Token::Command("sqrt".into()));
            digits(rest, tokens, 1);
        }
        "cdot" | "times" | "ast" => tokens.push(Token::Symbol('*')),
        "div" => tokens.push(Token::Symbol('/')),
        "lbrace" => tokens.push(Token::Command("{".into())),
        "rbrace" => tokens.push(Token::Command("}".into())),
        "%" => tokens.push(Token::Symbol('%')),
        "degree" | "degrees" | "circ" => tokens.push(Token::Word("degrees".into())),
        "ge" | "geq" | "geqslant" | "geqq" => tokens.push(Token::Command("ge".into())),
        "le" | "leq" | "leqslant" | "leqq" => tokens.push(Token::Command("le".into())),
        "gt" => tokens.push(Token::Symbol('>')),
        "lt" => tokens.push(Token::Symbol('<')),
        "approx" => tokens.push(Token::Symbol('=')),
        "emptyset" | "varnothing" => tokens.push(Token::Command("emptyset".into())),
        "newline" | "cr" => tokens.push(Token::Command("\\".into())),
        name if looks::TEXT.contains(&name) => text(&argument(rest)?, tokens)?,
        name if looks::FONTS.contains(&name) => read(&argument(rest)?, tokens)?,
        name if looks::UNSEEN.contains(&name) => drop(argument(rest)?),
        "textcolor" | "colorbox" => {
            argument(rest)?;
            read(&argument(rest)?, tokens)?;
        }
        // A point in place of a bracket is none.
        "left" | "right" => drop(rest.next_if_eq(&'.')),
        name if looks::LOOKS.contains(&name) => {}
        _ => tokens.push(Token::Command(name)),
    }
    Some(())
}

/// Digits each of which is an argument of its own, as in `\frac12`.
fn digits(rest: &mut Rest<'_>, tokens: &mut Vec<Token>, most: usize) {
    for _ in 0..most {
        take(rest, char::is_whitespace);
        let Some(digit) = rest.next_if(char::is_ascii_digit) else { return };
        push_number(digit, tokens);
    }
}

/// The argument of a command: what the braces that follow enclose, or the next character.
fn argument(rest: &mut Rest<'_>) -> Option<String> {
    take(rest, char::is_whitespace);
    if rest.next_if_eq(&'{').is_none() {
        return rest.next_if(|c| c.is_alphanumeric()).map(String::from);
    }
    let mut content = String::new();
    let mut depth = 1;
    for c in rest.by_ref() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(content);
        }
        content.push(c);
    }
    None
}

/// The content of `\text{…}` and its kin: one token if it has only words, else the tokens of its content.
fn text(content: &str, tokens: &mut Vec<Token>) -> Option<()> {
    let words = content.replace("\\ ", " ").replace("\\,", " ").replace('~', " ");
    let words = words.trim();
    let words = if tokens.is_empty() { looks::unlabelled(words).trim() } else { words };
    if words.bytes().all(|b| matches!(b, b'.' | b' ')) {
        return Some(());
    }
    let of_words = |c: char| c.is_alphabetic() || c.is_whitespace() || "()'’-:;,.&/!?".contains(c);
    if words.chars().all(of_words) && words.chars().any(char::is_alphabetic) {
        push_words(words, Token::Text, tokens);
        return Some(());
    }
    read(words, tokens)
}

fn number(rest: &mut Rest<'_>) -> Token {
    let mut text = take(rest, |c| c.is_ascii_digit());
    let mut grouped = false;
    // A first group of at most three digits, not 0, and then groups of three.
    if (1..=3).contains(&text.len()) && !text.starts_with('0') {
        while let Some(mark) = three_digits_follow(rest) {
            grouped |= [",", " "].contains(&mark);
            take(rest, |c| !c.is_ascii_digit());
            text.push_str(&take(rest, |c| c.is_ascii_digit()));
        }
    }
    if let Some(point) = rest.next_if_eq(&'.') {
        text.push(point);
        text.push_str(&take(rest, |c| c.is_ascii_digit()));
    } else if !text.is_empty() && decimals_follow(rest) {
        text.push('.');
        take(rest, |c| !c.is_ascii_digit());
        text.push_str(&take(rest, |c| c.is_ascii_digit()));
    }
    Token::Number { text, grouped }
}

/// The thousands separator that follows, `,` or `{,}` or `\,` or `,\!` or a space, with exactly three digits behind it.
/// Behind a space, they must be no numerator: `3 125/1000` is a mixed number.
fn three_digits_follow(rest: &Rest<'_>) -> Option<&'static str> {
    let ahead: String = rest.clone().take(8).collect();
    let marks = ["{,}", "\\,", ",\\!", "\\ ", "\\;", "\\:", "~", ",", " "];
    let (mark, after) = marks.iter().find_map(|mark| Some((*mark, ahead.strip_prefix(mark)?)))?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let numerator = mark == " " && after[digits..].trim_start().starts_with('/');
    (digits == 3 && !numerator).then_some(mark)
}

/// Whether a comma in braces follows that separates no thousands: `0{,}75` is a decimal number.
fn decimals_follow(rest: &Rest<'_>) -> bool {
    let mut ahead = rest.clone();
    "{,}".chars().all(|c| ahead.next() == Some(c)) && ahead.next().is_some_and(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str, grouped: bool) -> Token {
        Token::Number { text: text.into(), grouped }
    }

    #[test]
    fn thousands_are_one_number() {
        assert_eq!(tokens("1,234,567.5"), Some(vec![number("1234567.5", true)]));
        assert_eq!(tokens("1{,}234"), Some(vec![number("1234", false)]));
        assert_eq!(tokens("1, 234").unwrap().len(), 3);
        assert_eq!(tokens("1,23").unwrap().len(), 3);
        assert_eq!(tokens("1,2345").unwrap().len(), 3);
        assert_eq!(tokens("0,123").unwrap().len(), 3);
        assert_eq!(tokens("1234,567").unwrap().len(), 3);
    }

    #[test]
    fn looks_fall_away() {
        let plain = tokens("(1)/2").unwrap();
        assert_eq!(tokens(r"$\left( 1 \right) \div\, 2$.").unwrap(), plain);
        assert_eq!(tokens(r"\text{ two words }"), Some(vec![Token::Text("two words".into())]));
        assert_eq!(tokens(r"\text{open"), None);
        assert_eq!(tokens(&"1".repeat(MAX_BYTES + 1)), None);
    }
}
