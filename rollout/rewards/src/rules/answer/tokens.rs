//! Answers as tokens: what LaTeX writes in many ways becomes one.

/// Longest answer that is looked into, in bytes.
pub(super) const MAX_BYTES: usize = 400;

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// Digits with at most one point; thousands separators are gone. `grouped` says that there were commas as such.
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
    let answer = answer.trim();
    let answer = answer.strip_suffix('.').unwrap_or(answer);
    if answer.len() > MAX_BYTES {
        return None;
    }
    let mut tokens = Vec::new();
    let mut rest = answer.chars().peekable();
    while let Some(&c) = rest.peek() {
        if c.is_ascii_digit() || c == '.' {
            tokens.push(number(&mut rest));
            continue;
        }
        if c.is_alphabetic() && !matches!(c, 'π') {
            tokens.push(Token::Word(take(&mut rest, |c| c.is_alphabetic() && c != 'π')));
            continue;
        }
        rest.next();
        match c {
            '\\' => command(&mut rest, &mut tokens)?,
            c if c.is_whitespace() => {}
            '$' | '£' | '€' | '~' => {}
            '−' | '–' => tokens.push(Token::Symbol('-')),
            '×' | '·' | '∙' => tokens.push(Token::Symbol('*')),
            '÷' => tokens.push(Token::Symbol('/')),
            'π' => tokens.push(Token::Command("pi".into())),
            '√' => tokens.push(Token::Command("sqrt".into())),
            '∞' => tokens.push(Token::Command("infty".into())),
            '∪' => tokens.push(Token::Command("cup".into())),
            '°' => tokens.push(Token::Word("degrees".into())),
            '*' if rest.next_if_eq(&'*').is_some() => tokens.push(Token::Symbol('^')),
            c => tokens.push(Token::Symbol(c)),
        }
    }
    Some(tokens)
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
        "frac" | "dfrac" | "tfrac" | "cfrac" => {
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
        "text" | "textbf" | "textit" | "textrm" | "mathrm" | "mathbf" | "mbox" | "operatorname" => {
            tokens.push(Token::Text(argument(rest)?));
        }
        // What changes how an answer looks and not what it is.
        "left" | "right" | "big" | "Big" | "bigl" | "bigr" | "Bigl" | "Bigr" | "displaystyle" | "limits" => {}
        "quad" | "qquad" | "!" | "," | ";" | ":" | " " | "(" | ")" | "[" | "]" | "$" => {}
        _ => tokens.push(Token::Command(name)),
    }
    Some(())
}

/// Digits that are arguments each on its own, as in `\frac12`.
fn digits(rest: &mut Rest<'_>, tokens: &mut Vec<Token>, most: usize) {
    for _ in 0..most {
        take(rest, char::is_whitespace);
        let Some(digit) = rest.next_if(char::is_ascii_digit) else { return };
        tokens.push(Token::Number { text: digit.into(), grouped: false });
    }
}

/// The text in the braces that follow.
fn argument(rest: &mut Rest<'_>) -> Option<String> {
    take(rest, char::is_whitespace);
    rest.next_if_eq(&'{')?;
    let text = take(rest, |c| !matches!(c, '{' | '}'));
    rest.next_if_eq(&'}')?;
    Some(text.replace("\\ ", " ").trim().to_owned())
}

fn number(rest: &mut Rest<'_>) -> Token {
    let mut text = take(rest, |c| c.is_ascii_digit());
    let mut grouped = false;
    // A first group of at most three digits, not 0, and then groups of three.
    if (1..=3).contains(&text.len()) && !text.starts_with('0') {
        while three_digits_follow(rest) {
            grouped |= rest.peek() == Some(&',');
            take(rest, |c| !c.is_ascii_digit());
            text.push_str(&take(rest, |c| c.is_ascii_digit()));
        }
    }
    if let Some(point) = rest.next_if_eq(&'.') {
        text.push(point);
        text.push_str(&take(rest, |c| c.is_ascii_digit()));
    }
    Token::Number { text, grouped }
}

/// Whether a thousands separator follows, `,` or `{,}` or `\,` or `,\!`, and after it exactly three digits.
fn three_digits_follow(rest: &Rest<'_>) -> bool {
    let ahead: String = rest.clone().take(8).collect();
    let after = ["{,}", "\\,", ",\\!", ","].iter().find_map(|mark| ahead.strip_prefix(mark));
    after.is_some_and(|after| after.bytes().take_while(u8::is_ascii_digit).count() == 3)
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
