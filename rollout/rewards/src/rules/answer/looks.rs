//! Parts of an answer that change its looks and not its meaning: commands of LaTeX, marks of Markdown, characters.

use std::{borrow::Cow, sync::LazyLock};

use regex::{Captures, Regex};

/// Commands whose argument is text.
pub(super) const TEXT: [&str; 15] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "textsf",
    "texttt",
    "textnormal",
    "textup",
    "textsc",
    "textmd",
    "emph",
    "mbox",
    "hbox",
    "mathrm",
    "operatorname",
];

/// Commands whose argument is mathematics in another font or a frame.
pub(super) const FONTS: [&str; 17] = [
    "mathbf",
    "mathsf",
    "mathit",
    "mathtt",
    "mathnormal",
    "boldsymbol",
    "bm",
    "bold",
    "pmb",
    "underline",
    "ensuremath",
    "mathop",
    "mathord",
    "boxed",
    "fbox",
    "framebox",
    "uline",
];

/// Commands whose argument is not seen.
pub(super) const UNSEEN: [&str; 9] =
    ["hspace", "vspace", "phantom", "hphantom", "vphantom", "color", "tag", "label", "mspace"];

/// Commands without arguments.
pub(super) const LOOKS: [&str; 66] = [
    "middle",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "biggl",
    "biggr",
    "Biggl",
    "Biggr",
    "displaystyle",
    "textstyle",
    "scriptstyle",
    "scriptscriptstyle",
    "limits",
    "nolimits",
    "tiny",
    "scriptsize",
    "footnotesize",
    "small",
    "normalsize",
    "large",
    "Large",
    "LARGE",
    "huge",
    "Huge",
    "bf",
    "rm",
    "it",
    "sf",
    "tt",
    "sl",
    "bfseries",
    "itshape",
    "boldmath",
    "mathstrut",
    "strut",
    "quad",
    "qquad",
    "enspace",
    "enskip",
    "thinspace",
    "medspace",
    "thickspace",
    "negthinspace",
    "space",
    "nobreakspace",
    "allowbreak",
    "pounds",
    "euro",
    "yen",
    "!",
    ",",
    ";",
    ":",
    ">",
    " ",
    "(",
    ")",
    "[",
    "]",
    "$",
    "/",
];

/// A command for text, a font or a frame, with its content, where that holds no other such command.
static AROUND: LazyLock<Regex> = LazyLock::new(|| {
    let names = [&TEXT[..], &FONTS].concat().join("|");
    Regex::new(&format!(r"\\(?:{names})\s*\{{([^{{}}]*)\}}")).expect("a valid pattern")
});

/// A command that holds nothing: one of [`LOOKS`], the size of a bracket, a line break.
static ALONE: LazyLock<Regex> = LazyLock::new(|| {
    let (names, signs): (Vec<&str>, Vec<&str>) =
        LOOKS.iter().partition(|look| look.starts_with(|c: char| c.is_ascii_alphabetic()));
    let (names, signs) = (names.join("|"), signs.iter().map(|sign| regex::escape(sign)).collect::<Vec<_>>().join("|"));
    Regex::new(&format!(r"\\(?:\\|(?:{names})\b|(?:left|right)\b\.?|({signs}))")).expect("a valid pattern")
});

/// How deep commands for fonts are taken off.
const FONTS_WITHIN_FONTS: usize = 3;

/// A text without the LaTeX commands that change its looks; their content stays. Rules that compare texts need this.
/// The answer checker knows the same commands as tokens.
pub(in super::super) fn without_commands(text: &str) -> String {
    // Words stay apart, and digits that thin spaces group stay together.
    let alone = |found: &Captures<'_>| match found.get(1) {
        Some(sign) if sign.as_str() != " " => "",
        _ => " ",
    };
    let mut text = ALONE.replace_all(text, alone).trim().to_owned();
    for _ in 0..FONTS_WITHIN_FONTS {
        text = AROUND.replace_all(&text, "$1").into_owned();
    }
    text
}

/// Words before a colon that only announce an answer.
static LABEL: LazyLock<Regex> = LazyLock::new(|| {
    let words = r"(?i)^(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:final\s+|correct\s+|right\s+)?";
    Regex::new(&format!(r"{words}(?:answer|result|solution)(?:\s+is)?\s*[:=]\s*")).expect("a valid pattern")
});

/// A text without words that only announce an answer.
pub(super) fn unlabelled(text: &str) -> &str {
    LABEL.find(text).map_or(text, |found| &text[found.end()..])
}

/// Layers of looks that are taken off. The bound keeps the cost of a long answer of nothing else low.
const LOOKS_WITHIN_LOOKS: usize = 16;

/// An answer without Markdown marks, quotation marks and a full stop around it. Characters that only look different
/// from those of ASCII become ASCII.
pub(in super::super) fn bare(answer: &str) -> String {
    let plain: String = answer.chars().filter(|&c| !has_no_width(c)).map(in_ascii).collect();
    let mut text = unmarked(plain.trim());
    // Each look may hide another one: `**"58".**`.
    for _ in 0..LOOKS_WITHIN_LOOKS {
        let before = text.len();
        text = text.trim().to_owned();
        text = unlabelled(&text).to_owned();
        text = unquoted(&text).to_owned();
        text = unmarked(&text);
        // The end of a sentence, and not that of an ellipsis.
        let ended = text.strip_suffix(['.', ';', '。']).filter(|rest| !rest.ends_with('.'));
        text = ended.map(|rest| rest.trim_end().to_owned()).unwrap_or(text);
        text = text.trim_start_matches('=').to_owned();
        if text.len() == before {
            break;
        }
    }
    text
}

/// Without emphasis. No expression begins or ends with a star.
fn unmarked(text: &str) -> String {
    let text = match text.strip_prefix("**") {
        Some(rest) => Cow::from(rest.replacen("**", "", 1)),
        None => Cow::from(text),
    };
    let mut text = text.trim_matches(['*', '`']).trim();
    while let Some(inner) = text.strip_prefix('_').and_then(|rest| rest.strip_suffix('_')) {
        text = inner.trim();
    }
    text.to_owned()
}

fn unquoted(text: &str) -> &str {
    let pairs = [('"', '"'), ('“', '”'), ('«', '»')];
    pairs.iter().find_map(|&(open, close)| text.strip_prefix(open)?.strip_suffix(close)).unwrap_or(text)
}

/// Soft hyphens, spaces of no width, and marks of direction.
fn has_no_width(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
}

/// Full-width characters and spaces of any width.
fn in_ascii(c: char) -> char {
    match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        c => c,
    }
}

/// Numerator and denominator of a character that is a fraction.
pub(super) fn fraction(c: char) -> Option<(&'static str, &'static str)> {
    Some(match c {
        '½' => ("1", "2"),
        '⅓' => ("1", "3"),
        '⅔' => ("2", "3"),
        '¼' => ("1", "4"),
        '¾' => ("3", "4"),
        '⅕' => ("1", "5"),
        '⅖' => ("2", "5"),
        '⅗' => ("3", "5"),
        '⅘' => ("4", "5"),
        '⅙' => ("1", "6"),
        '⅚' => ("5", "6"),
        '⅐' => ("1", "7"),
        '⅛' => ("1", "8"),
        '⅜' => ("3", "8"),
        '⅝' => ("5", "8"),
        '⅞' => ("7", "8"),
        '⅑' => ("1", "9"),
        '⅒' => ("1", "10"),
        _ => return None,
    })
}

/// The character that a raised one stands for.
pub(super) fn raised(c: char) -> Option<char> {
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".chars().zip("0123456789-".chars()).find(|(raised, _)| *raised == c).map(|(_, plain)| plain)
}

/// How many zeros `million` and its kin stand for.
pub(super) fn multiple(word: &str) -> Option<usize> {
    let words = [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];
    let word = word.to_lowercase();
    words.iter().find(|(name, _)| *name == word || word.strip_suffix('s') == Some(*name)).map(|(_, zeros)| *zeros)
}
