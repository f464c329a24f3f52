//! Patterns of file names: `*`, `?`, and every other letter for itself.

/// Whether a text matches a pattern. Character classes (`[a-z]`) are not understood.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // The last star, and the place in the text where the rest of the pattern was tried.
    let (mut at, mut here, mut star) = (0, 0, None);
    while here < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == text[here] => {
                at += 1;
                here += 1;
            }
            _ => {
                let Some((of_star, tried)) = star else { return false };
                star = Some((of_star, tried + 1));
                at = of_star + 1;
                here = tried + 1;
            }
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

/// The rest of a text without the part at one end that matches a pattern: the longest such part, or the shortest.
pub fn without<'a>(text: &'a str, pattern: &str, at_end: bool, longest: bool) -> &'a str {
    let mut cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    // The parts from the shortest to the longest.
    if at_end != longest {
        cuts.reverse();
    }
    let fits = |cut: &usize| matches(pattern, if at_end { &text[*cut..] } else { &text[..*cut] });
    match cuts.into_iter().find(fits) {
        Some(cut) if at_end => &text[..cut],
        Some(cut) => &text[cut..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("?b", "ab", true),
            ("?", "", false),
            ("abc", "abc", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn parts_are_cut_off_at_either_end() {
        let path = "/a/b.c.d";
        assert_eq!(without(path, "*/", false, true), "b.c.d");
        assert_eq!(without(path, "*/", false, false), "a/b.c.d");
        assert_eq!(without(path, ".*", true, false), "/a/b.c");
        assert_eq!(without(path, ".*", true, true), "/a/b");
        assert_eq!(without(path, "x", true, true), path);
    }
}
