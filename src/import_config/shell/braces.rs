//! `{a,b}` and `{1..3}`.

use brush_parser::word::{self, BraceExpressionMember, BraceExpressionOrText};

use super::options;

/// Most words that braces expand to.
const MOST_BRACES: usize = 1000;

/// The words that `{a,b}` and `{1..3}` expand to; none if the word has no such braces.
pub fn braces(written: &str) -> Option<Vec<String>> {
    let has_some = written.contains('{') && (written.contains(',') || written.contains(".."));
    // The parser takes no numbers beyond 64 bits.
    let too_long = written.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 18);
    if !has_some || too_long {
        return None;
    }
    let parts = word::parse_brace_expansions(written, &options()).ok()??;
    parts.iter().any(|part| matches!(part, BraceExpressionOrText::Expr(_))).then(|| combinations(&parts))?
}

/// Every combination of the alternatives in braces; none if there are too many.
fn combinations(parts: &[BraceExpressionOrText]) -> Option<Vec<String>> {
    let mut all = vec![String::new()];
    for part in parts {
        let choices = match part {
            BraceExpressionOrText::Text(text) => vec![text.clone()],
            BraceExpressionOrText::Expr(members) => members.iter().map(choices).collect::<Option<Vec<_>>>()?.concat(),
        };
        if all.len().saturating_mul(choices.len()) > MOST_BRACES {
            return None;
        }
        all = all.iter().flat_map(|begin| choices.iter().map(move |choice| format!("{begin}{choice}"))).collect();
    }
    Some(all)
}

fn choices(member: &BraceExpressionMember) -> Option<Vec<String>> {
    match member {
        BraceExpressionMember::Child(parts) => combinations(parts),
        BraceExpressionMember::NumberSequence { start, end, increment } => {
            let step = usize::try_from(increment.unsigned_abs()).ok().filter(|step| *step > 0)?;
            if start.abs_diff(*end) / step as u64 > MOST_BRACES as u64 {
                return None;
            }
            let numbers: Vec<i64> =
                if start <= end { (*start..=*end).collect() } else { (*end..=*start).rev().collect() };
            Some(numbers.iter().step_by(step).map(ToString::to_string).collect())
        }
        BraceExpressionMember::CharSequence { .. } => None,
    }
}
