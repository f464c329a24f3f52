//! A shell script as its commands, as far as configurations need it: quotes, comments, line continuations, redirections, and
//! the variables that the script itself sets.

use std::{collections::HashMap, iter::Peekable, str::Chars};

/// The commands of a script, each as its words. Variables that the script does not set stay as they are written.
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let mut reader = Reader { letters: script.chars().peekable(), ..Reader::default() };
    while let Some(letter) = reader.letters.next() {
        reader.take(letter);
    }
    reader.end_command();
    reader.commands
}

/// `NAME=value`, if a word sets a variable.
pub fn assignment(word: &str) -> Option<(&str, &str)> {
    word.split_once('=').filter(|(name, _)| !name.is_empty() && name.chars().all(is_of_name))
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

struct Reader<'a> {
    letters: Peekable<Chars<'a>>,
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    /// The word that has begun; an empty one between quotes is one too.
    word: Option<String>,
    /// Whether the next word is the file of a redirection.
    redirected: bool,
    variables: HashMap<String, String>,
}

impl Default for Reader<'_> {
    fn default() -> Self {
        Self {
            letters: "".chars().peekable(),
            commands: Vec::new(),
            words: Vec::new(),
            word: None,
            redirected: false,
            variables: HashMap::new(),
        }
    }
}

impl Reader<'_> {
    fn take(&mut self, letter: char) {
        match letter {
            '\\' => match self.letters.next() {
                Some('\n') | None => (),
                Some(escaped) => self.push(escaped),
            },
            '\'' => {
                let text: String = self.letters.by_ref().take_while(|&letter| letter != '\'').collect();
                self.extend(&text);
            }
            '"' => self.quoted(),
            '$' if self.letters.peek() == Some(&'(') => self.substitution(),
            '$' => {
                let text = self.variable();
                self.split(&text);
            }
            '`' => {
                let text: String = self.letters.by_ref().take_while(|&letter| letter != '`').collect();
                self.extend(&format!("$({text})"));
            }
            '#' if self.word.is_none() => while self.letters.next_if(|&letter| letter != '\n').is_some() {},
            '<' | '>' => self.redirect(),
            '\n' | ';' | '|' | '&' | '(' | ')' => self.end_command(),
            letter if letter.is_whitespace() => self.end_word(),
            letter => self.push(letter),
        }
    }

    fn push(&mut self, letter: char) {
        self.word.get_or_insert_default().push(letter);
    }

    fn extend(&mut self, text: &str) {
        self.word.get_or_insert_default().push_str(text);
    }

    /// The rest of a text in double quotes.
    fn quoted(&mut self) {
        self.extend("");
        while let Some(letter) = self.letters.next().filter(|&letter| letter != '"') {
            match letter {
                '\\' => match self.letters.next() {
                    Some('\n') | None => (),
                    Some(escaped @ ('"' | '\\' | '$' | '`')) => self.push(escaped),
                    Some(other) => self.extend(&format!("\\{other}")),
                },
                '$' if self.letters.peek() == Some(&'(') => self.substitution(),
                '$' => {
                    let text = self.variable();
                    self.extend(&text);
                }
                letter => self.push(letter),
            }
        }
    }

    /// `$(…)` and `$((…))` as they are written: what they stand for is known where the script runs.
    fn substitution(&mut self) {
        let (mut text, mut depth) = (String::from("$"), 0_u32);
        for letter in self.letters.by_ref() {
            text.push(letter);
            depth = match letter {
                '(' => depth + 1,
                ')' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                break;
            }
        }
        self.extend(&text);
    }

    /// What stands for `$NAME`, `${NAME}` or `${NAME:-default}`; as it is written where the script does not say.
    fn variable(&mut self) -> String {
        let braced = self.letters.next_if_eq(&'{').is_some();
        let mut inner = String::new();
        while let Some(letter) = self.letters.next_if(|&letter| if braced { letter != '}' } else { is_of_name(letter) })
        {
            inner.push(letter);
        }
        if braced {
            self.letters.next();
        }
        let with_default = inner.split_once(":-").or_else(|| inner.split_once('-'));
        let (name, default) = match with_default.filter(|(name, _)| name.chars().all(is_of_name)) {
            Some((name, default)) => (name, Some(default)),
            None => (inner.as_str(), None),
        };
        let known = self.variables.get(name).map(String::as_str).or(default);
        let written = || if braced { format!("${{{inner}}}") } else { format!("${inner}") };
        known.map_or_else(written, str::to_owned)
    }

    /// Adds what stood outside of quotes, where blanks end words.
    fn split(&mut self, text: &str) {
        for letter in text.chars() {
            if letter.is_whitespace() { self.end_word() } else { self.push(letter) }
        }
    }

    fn redirect(&mut self) {
        // The number of a descriptor is part of the redirection.
        self.word.take_if(|word| word.chars().all(|letter| letter.is_ascii_digit()));
        self.end_word();
        while self.letters.next_if(|letter| ['<', '>', '&'].contains(letter)).is_some() {}
        self.redirected = true;
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.redirected) {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirected = false;
        let words = std::mem::take(&mut self.words);
        let set = words.strip_prefix(&["export".to_owned()]).unwrap_or(&words);
        let assigned: Option<Vec<_>> = set.iter().map(|word| assignment(word)).collect();
        match assigned {
            Some(assigned) => {
                let owned = assigned.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
                self.variables.extend(owned);
            }
            None => self.commands.push(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_as_the_shell_reads_it() {
        for (script, expected) in [
            ("a  b\tc\n\n d", &[&["a", "b", "c"][..], &["d"]][..]),
            ("a \\\n  b # c\n# don't\ne", &[&["a", "b"], &["e"]]),
            (r#"a 'b "c' "d 'e" \"f\ g "" x#y"#, &[&["a", "b \"c", "d 'e", "\"f g", "", "x#y"]]),
            (r#"a "b\"\n\$c""#, &[&["a", "b\"\\n$c"]]),
            ("a; b && c | d &", &[&["a"], &["b"], &["c"], &["d"]]),
            ("a --n 2 2>&1 > log b", &[&["a", "--n", "2", "b"]]),
            ("X=1\nexport Y='p q'\na $X \"$Y\" $Y ${X}0 '$X'", &[&["a", "1", "p q", "p", "q", "10", "$X"]]),
            ("a $Z ${Z}/b ${Z:-c} $@ $", &[&["a", "$Z", "${Z}/b", "c", "$@", "$"]]),
            ("X=1 a $X", &[&["X=1", "a", "$X"]]),
            (
                "a --n x-$(date +%s) --m \"$(f $((1 + 2)))\" `g h` --o 1",
                &[&["a", "--n", "x-$(date +%s)", "--m", "$(f $((1 + 2)))", "$(g h)", "--o", "1"]],
            ),
        ] {
            assert_eq!(commands(script), expected, "{script}");
        }
    }
}
