//! Expands a written word to the words that the shell makes of it.

use brush_parser::word::{
    self, Parameter, ParameterExpr, ParameterTestType, SpecialParameter, SubstringMatchKind, WordPiece,
    WordPieceWithSource,
};

use super::{
    Unset, Word,
    braces::braces,
    options, parse, pattern,
    run::{Shell, Variable},
};

/// Variables that every shell has, whatever the environment. Others that neither the script nor the environment sets
/// count as unset.
pub const ALWAYS_THERE: [&str; 10] =
    ["HOME", "PATH", "PWD", "OLDPWD", "USER", "LOGNAME", "HOSTNAME", "SHELL", "RANDOM", "SECONDS"];

/// Words under construction.
#[derive(Default)]
struct Fields {
    done: Vec<Word>,
    /// The word that has begun; an empty text between quotes begins one too.
    open: Option<Word>,
}

impl Fields {
    fn push(&mut self, part: &Word) {
        self.open.get_or_insert_default().push(part);
    }

    fn end(&mut self) {
        self.done.extend(self.open.take());
    }

    /// Adds text from outside of quotes, in which separators end words. Text that is not known is not split.
    fn split(&mut self, part: &Word, separators: &str) {
        if part.unset().is_some() {
            return self.push(part);
        }
        let mut rest = &**part;
        while let Some(at) = rest.find(|c: char| separators.contains(c)) {
            let letter = rest[at..].chars().next().unwrap_or(' ');
            // Any number of blanks separates once; each other separator separates.
            if at > 0 || !letter.is_whitespace() {
                self.push(&Word::known(&rest[..at]));
            }
            self.end();
            rest = &rest[at + letter.len_utf8()..];
        }
        if !rest.is_empty() {
            self.push(&Word::known(rest));
        }
    }

    /// Adds words that stay apart, as of `"${ARGS[@]}"`.
    fn each(&mut self, words: &[Word], add: impl Fn(&mut Self, &Word)) {
        for (index, word) in words.iter().enumerate() {
            if index > 0 {
                self.end();
            }
            add(self, word);
        }
    }

    fn finish(mut self) -> Vec<Word> {
        self.end();
        self.done
    }
}

/// The value of a parameter.
enum Value {
    One(Word),
    /// All elements of an array, or all arguments, and whether they stay separate words.
    All(Vec<Word>, bool),
    Absent,
}

impl Shell {
    /// The words that the shell makes of a written word.
    pub fn words(&mut self, written: &str) -> Vec<Word> {
        let braced = braces(written).unwrap_or_else(|| vec![written.to_owned()]);
        braced.iter().flat_map(|written| self.fields(written)).collect()
    }

    /// A word in a place where it is not split, as behind `NAME=`.
    pub fn in_one(&mut self, written: &str) -> Word {
        let mut fields = Fields::default();
        match word::parse(written, &options()) {
            Ok(pieces) => pieces.iter().for_each(|piece| self.piece(&mut fields, piece, written, true)),
            Err(_) => fields.push(&self.unclear(written)),
        }
        joined(&fields.finish())
    }

    /// A text as if it stood in double quotes.
    pub fn in_quotes(&mut self, written: &str) -> Word {
        self.in_one(&format!("\"{}\"", written.replace('"', "\\\"")))
    }

    fn fields(&mut self, written: &str) -> Vec<Word> {
        let mut fields = Fields::default();
        match word::parse(written, &options()) {
            Ok(pieces) => pieces.iter().for_each(|piece| self.piece(&mut fields, piece, written, false)),
            Err(_) => fields.push(&self.unclear(written)),
        }
        fields.finish()
    }

    fn unclear(&self, written: &str) -> Word {
        self.unknown(written, format!("`{}` is not understood", short(written)))
    }

    fn unknown(&self, written: &str, what: String) -> Word {
        Word::unknown(written, Unset::new(self.line, what))
    }

    fn piece(&mut self, fields: &mut Fields, piece: &WordPieceWithSource, written: &str, quoted: bool) {
        let source = written.get(piece.start_index..piece.end_index).unwrap_or(written);
        match &piece.piece {
            WordPiece::Text(text) | WordPiece::SingleQuotedText(text) => fields.push(&Word::known(text.as_str())),
            WordPiece::AnsiCQuotedText(text) => fields.push(&Word::known(ansi(text))),
            WordPiece::DoubleQuotedSequence(inner) | WordPiece::GettextDoubleQuotedSequence(inner) => {
                // Quotes around nothing are a word; quotes around an empty array are none.
                let only_all = matches!(inner.as_slice(), [one] if is_all(&one.piece));
                if !only_all {
                    fields.push(&Word::default());
                }
                inner.iter().for_each(|piece| self.piece(fields, piece, written, true));
            }
            WordPiece::TildePrefix(user) => {
                let home = self.scalar("HOME").filter(|_| user.is_empty());
                let written = format!("~{user}");
                let what = if user.is_empty() {
                    format!("`{written}` is a folder of the user's, a shell variable; {WAY_HOME}")
                } else {
                    format!("`{written}` may be a folder that only the shell knows; write the path out")
                };
                fields.push(&home.unwrap_or_else(|| self.unknown(&written, what)));
            }
            WordPiece::ParameterExpansion(expression) => self.parameter(fields, expression, source, quoted),
            WordPiece::CommandSubstitution(command) | WordPiece::BackquotedCommandSubstitution(command) => {
                let value = self.printed(command);
                self.add(fields, &value, quoted);
            }
            WordPiece::EscapeSequence(text) => {
                let letter = text.strip_prefix('\\').unwrap_or(text);
                fields.push(&Word::known(if letter == "\n" { "" } else { letter }));
            }
            WordPiece::ArithmeticExpression(expression) => {
                let known = self.arithmetic(&expression.value).map(|number| Word::known(number.to_string()));
                let written = format!("$(({}))", expression.value);
                fields
                    .push(&known.unwrap_or_else(|| self.unknown(&written, format!("`{written}` cannot be computed"))));
            }
        }
    }

    /// The output of a command: the words of `echo`; that of other commands is not known.
    fn printed(&mut self, command: &str) -> Word {
        let written = format!("$({command})");
        if let Some(program) =
            Some(command).filter(|text| !text.contains(['|', '&', '>', '<'])).and_then(|text| parse(text).ok())
            && let Some(text) = self.printed_by(&program)
        {
            return text;
        }
        self.unknown(&written, format!("`{}` is what a command prints", short(&written)))
    }

    /// Adds a text: as one word between quotes, else split at separators.
    fn add(&self, fields: &mut Fields, word: &Word, quoted: bool) {
        match self.separators() {
            _ if quoted => fields.push(word),
            Some(separators) => fields.split(word, &separators),
            None => {
                fields.push(&self.unknown(word, "`$IFS`, which says where words end, is not known here".to_owned()))
            }
        }
    }

    /// Words joined to one, with the first separator between them.
    fn joined(&self, words: &[Word]) -> Word {
        match self.separators() {
            Some(separators) => with(words, separators.chars().next().map_or_else(String::new, String::from).as_str()),
            None => self.unknown("…", "`$IFS`, which joins words, is not known here".to_owned()),
        }
    }

    fn parameter(&mut self, fields: &mut Fields, expression: &ParameterExpr, source: &str, quoted: bool) {
        let value = self.expanded(expression, source, quoted);
        match value {
            Value::One(word) => self.add(fields, &word, quoted),
            Value::All(words, apart) if apart || !quoted => {
                fields.each(&words, |fields, word| self.add(fields, word, quoted));
            }
            Value::All(words, _) => fields.push(&self.joined(&words)),
            Value::Absent => {
                self.misses(source);
                let what = format!("`{source}` is a shell variable that the script does not set");
                fields.push(&Word::unknown(source, Unset { absent: true, ..Unset::new(self.line, what) }));
            }
        }
    }

    fn expanded(&mut self, expression: &ParameterExpr, source: &str, quoted: bool) -> Value {
        match expression {
            ParameterExpr::Parameter { parameter, indirect: false } => self.looked_up(parameter, source),
            ParameterExpr::UseDefaultValues { parameter, indirect: false, test_type, default_value } => {
                let found = self.looked_up(parameter, source);
                if stands(&found, test_type) { found } else { self.default(default_value.as_deref(), quoted) }
            }
            ParameterExpr::AssignDefaultValues { parameter, indirect: false, test_type, default_value } => {
                let found = self.looked_up(parameter, source);
                if stands(&found, test_type) {
                    return found;
                }
                let value = self.in_one(default_value.as_deref().unwrap_or_default());
                if let Parameter::Named(name) = parameter {
                    self.put(name, value.clone());
                }
                Value::One(value)
            }
            ParameterExpr::IndicateErrorIfNullOrUnset { parameter, indirect: false, test_type, .. } => {
                let found = self.looked_up(parameter, source);
                if stands(&found, test_type) { found } else { Value::Absent }
            }
            ParameterExpr::UseAlternativeValue { parameter, indirect: false, test_type, alternative_value } => {
                match self.looked_up(parameter, source) {
                    Value::One(word) if word.unset().is_some_and(|unset| !unset.absent) => self.not_told(source),
                    found if stands(&found, test_type) => self.default(alternative_value.as_deref(), quoted),
                    found => {
                        if matches!(found, Value::Absent) {
                            self.misses(source);
                        }
                        Value::All(Vec::new(), true)
                    }
                }
            }
            // A script usually has no arguments.
            ParameterExpr::Substring { parameter: Parameter::Special(_), indirect: false, .. }
                if self.arguments.is_empty() =>
            {
                Value::All(Vec::new(), true)
            }
            ParameterExpr::ParameterLength { parameter, indirect: false } => match self.looked_up(parameter, source) {
                Value::One(word) if word.unset().is_none() => one(word.chars().count().to_string()),
                Value::All(words, _) => one(words.len().to_string()),
                Value::Absent => {
                    self.misses(source);
                    one("0")
                }
                Value::One(_) => self.not_told(source),
            },
            other => self.edited(other, source),
        }
    }

    /// Expansions that change the text of a variable.
    fn edited(&mut self, expression: &ParameterExpr, source: &str) -> Value {
        let found = match expression {
            ParameterExpr::RemoveSmallestSuffixPattern { parameter, indirect: false, pattern } => {
                self.cut(parameter, pattern.as_deref(), true, false)
            }
            ParameterExpr::RemoveLargestSuffixPattern { parameter, indirect: false, pattern } => {
                self.cut(parameter, pattern.as_deref(), true, true)
            }
            ParameterExpr::RemoveSmallestPrefixPattern { parameter, indirect: false, pattern } => {
                self.cut(parameter, pattern.as_deref(), false, false)
            }
            ParameterExpr::RemoveLargestPrefixPattern { parameter, indirect: false, pattern } => {
                self.cut(parameter, pattern.as_deref(), false, true)
            }
            ParameterExpr::Substring { parameter, indirect: false, offset, length } => {
                let length = length.as_ref().map(|length| length.value.as_str());
                self.slice(parameter, &offset.value, length)
            }
            ParameterExpr::UppercasePattern { parameter, indirect: false, pattern } if is_all_letters(pattern) => {
                self.text(parameter).map(|text| text.to_uppercase())
            }
            ParameterExpr::LowercasePattern { parameter, indirect: false, pattern } if is_all_letters(pattern) => {
                self.text(parameter).map(|text| text.to_lowercase())
            }
            ParameterExpr::ReplaceSubstring { parameter, indirect: false, pattern, replacement, match_kind } => {
                self.replaced(parameter, pattern, replacement.as_deref(), match_kind)
            }
            _ => None,
        };
        found.map_or_else(|| self.not_told(source), one)
    }

    fn not_told(&self, source: &str) -> Value {
        Value::One(self.unknown(source, format!("`{source}` is not known here")))
    }

    /// The text of a parameter, if it is known.
    fn text(&mut self, parameter: &Parameter) -> Option<String> {
        match self.looked_up(parameter, "") {
            Value::One(word) if word.unset().is_none() => Some(word.to_string()),
            Value::All(words, _) if words.iter().all(|word| word.unset().is_none()) => Some(joined(&words).to_string()),
            _ => None,
        }
    }

    fn cut(&mut self, parameter: &Parameter, written: Option<&str>, at_end: bool, longest: bool) -> Option<String> {
        let (text, wanted) = (self.text(parameter)?, self.in_one(written.unwrap_or_default()));
        let clear = wanted.unset().is_none() && !wanted.contains('[');
        clear.then(|| pattern::without(&text, &wanted, at_end, longest).to_owned())
    }

    fn slice(&mut self, parameter: &Parameter, offset: &str, length: Option<&str>) -> Option<String> {
        if matches!(parameter, Parameter::Special(_) | Parameter::NamedWithAllIndices { .. }) {
            return None;
        }
        let letters: Vec<char> = self.text(parameter)?.chars().collect();
        let count = letters.len() as i64;
        let at = |index: i64| if index < 0 { (count + index).max(0) } else { index.min(count) };
        let begin = at(self.arithmetic(offset)?);
        let end = match length {
            None => count,
            Some(length) => match self.arithmetic(length)? {
                length if length < 0 => at(length),
                length => begin.saturating_add(length).min(count),
            },
        };
        Some(letters.get(begin as usize..end as usize).unwrap_or_default().iter().collect())
    }

    fn replaced(
        &mut self,
        parameter: &Parameter,
        pattern: &str,
        replacement: Option<&str>,
        kind: &SubstringMatchKind,
    ) -> Option<String> {
        let text = self.text(parameter)?;
        let (wanted, put) = (self.in_one(pattern), self.in_one(replacement.unwrap_or_default()));
        let clear = wanted.unset().is_none() && put.unset().is_none() && !wanted.contains(['*', '?', '[']);
        if !clear || wanted.is_empty() {
            return None;
        }
        Some(match kind {
            SubstringMatchKind::Anywhere => text.replace(&*wanted, &put),
            SubstringMatchKind::FirstOccurrence => text.replacen(&*wanted, &put, 1),
            SubstringMatchKind::Prefix => {
                text.strip_prefix(&*wanted).map_or(text.clone(), |rest| format!("{}{rest}", &*put))
            }
            SubstringMatchKind::Suffix => {
                text.strip_suffix(&*wanted).map_or(text.clone(), |rest| format!("{rest}{}", &*put))
            }
        })
    }

    fn default(&mut self, written: Option<&str>, quoted: bool) -> Value {
        match written {
            None => Value::All(Vec::new(), true),
            Some(written) if quoted => one_word(self.in_one(written)),
            Some(written) => Value::All(self.fields(written), true),
        }
    }

    fn looked_up(&mut self, parameter: &Parameter, source: &str) -> Value {
        match parameter {
            Parameter::Named(name) => {
                self.uses(name);
                self.scalar(name).map_or_else(
                    || {
                        if ALWAYS_THERE.contains(&name.as_str()) {
                            let what =
                                format!("`${name}` is a shell variable that the script does not set; {}", way(name));
                            return Value::One(self.unknown(&format!("${name}"), what));
                        }
                        Value::Absent
                    },
                    Value::One,
                )
            }
            Parameter::NamedWithIndex { name, index } => match self.arithmetic(index) {
                Some(index) => self.element(name, index).map_or(Value::Absent, Value::One),
                None => self.not_told(&format!("${{{name}[{index}]}}")),
            },
            Parameter::NamedWithAllIndices { name, concatenate } => match self.variables.get(name) {
                Some(Variable::Scalar(word)) => Value::All(vec![word.clone()], !concatenate),
                Some(Variable::Array(words)) => Value::All(words.clone(), !concatenate),
                None => Value::Absent,
            },
            Parameter::Positional(number) => match self.arguments.get(*number as usize - 1) {
                Some(word) => Value::One(word.clone()),
                None => Value::Absent,
            },
            Parameter::Special(SpecialParameter::AllPositionalParameters { concatenate }) => {
                Value::All(self.arguments.clone(), !concatenate)
            }
            Parameter::Special(SpecialParameter::PositionalParameterCount) => one(self.arguments.len().to_string()),
            Parameter::Special(_) => self.not_told(source),
        }
    }
}

/// Whether a change of case applies to all letters.
fn is_all_letters(pattern: &Option<String>) -> bool {
    pattern.as_deref().is_none_or(|pattern| pattern.is_empty() || pattern == "?")
}

/// Whether a parameter has a value in the sense of a default's test. A value that is not known counts as one.
fn stands(value: &Value, test: &ParameterTestType) -> bool {
    let or_empty = matches!(test, ParameterTestType::UnsetOrNull);
    match value {
        Value::Absent => false,
        Value::One(word) => word.unset().map_or(!or_empty || !word.is_empty(), |unset| !unset.absent),
        Value::All(words, _) => !words.is_empty(),
    }
}

fn is_all(piece: &WordPiece) -> bool {
    let all = |parameter: &Parameter| {
        matches!(
            parameter,
            Parameter::NamedWithAllIndices { concatenate: false, .. }
                | Parameter::Special(SpecialParameter::AllPositionalParameters { concatenate: false })
        )
    };
    match piece {
        WordPiece::ParameterExpansion(
            ParameterExpr::Parameter { parameter, .. }
            | ParameterExpr::UseDefaultValues { parameter, .. }
            | ParameterExpr::UseAlternativeValue { parameter, .. }
            | ParameterExpr::Substring { parameter, .. },
        ) => all(parameter),
        _ => false,
    }
}

fn one(text: impl Into<String>) -> Value {
    one_word(Word::known(text))
}

fn one_word(word: Word) -> Value {
    Value::One(word)
}

/// What to do about the user's home folder.
const WAY_HOME: &str = "put HOME=FOLDER on the first line of the script, or write the path out";

fn way(name: &str) -> String {
    if name == "HOME" { WAY_HOME.to_owned() } else { format!("put {name}=VALUE on the first line of the script") }
}

/// Words with blanks between them.
fn joined(words: &[Word]) -> Word {
    with(words, " ")
}

/// Words with a text between them.
fn with(words: &[Word], between: &str) -> Word {
    let mut all = Word::default();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            all.push(&Word::known(between));
        }
        all.push(word);
    }
    all
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 60 { line } else { format!("{}…", line.chars().take(59).collect::<String>()) }
}

/// The text of `$'…'`.
fn ansi(text: &str) -> String {
    let (mut out, mut letters) = (String::new(), text.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(other @ ('\\' | '\'' | '"')) => out.push(other),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            letter => out.push(letter),
        }
    }
    out
}
