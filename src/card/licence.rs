//! The licence of the model that another one was made of.

use std::path::Path;

use serde_json::Value;

use super::FILE;

/// Most bytes of a card that are read.
const MOST: u64 = 4 << 20;

/// The keys of a card's head that say the licence.
const KEYS: [&str; 3] = ["license", "license_name", "license_link"];

/// What the card in a folder says of its licence: keys and values of its head; nothing if there is no card, or one that
/// cannot be read. `page` is the model's page, if it is on the Hub: a link to a file there is completed.
pub fn of(folder: &Path, page: Option<&str>) -> Vec<(&'static str, String)> {
    shared_bounds::read_text(&folder.join(FILE), MOST).map(|card| in_card(&card, page)).unwrap_or_default()
}

fn in_card(card: &str, page: Option<&str>) -> Vec<(&'static str, String)> {
    let card = card.trim_start_matches('\u{feff}');
    let head = card.strip_prefix("---").and_then(|rest| rest.split_once("\n---")).map(|(head, _)| head);
    let Some(head) = head.and_then(|head| serde_saphyr::from_str::<Value>(head).ok()) else { return Vec::new() };
    let text = |key: &str| {
        let value = &head[key];
        let one = value.as_array().and_then(|list| list.first()).unwrap_or(value);
        one.as_str().map(str::trim).filter(|text| !text.is_empty() && text.len() < 500).map(str::to_owned)
    };
    if text(KEYS[0]).is_none() {
        return Vec::new();
    }
    let said = KEYS.into_iter().filter_map(|key| Some((key, text(key)?)));
    said.filter_map(|(key, value)| match key {
        "license_link" if !value.contains("://") => {
            page.map(|page| (key, format!("{page}/blob/main/{}", value.trim_start_matches("./"))))
        }
        _ => Some((key, value)),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_licence_is_that_of_the_cards_head() {
        let of = |card: &str| in_card(card, Some("https://huggingface.co/a/b"));
        assert_eq!(of("---\nlicense: apache-2.0\ntags: [x]\n---\n# A\n"), [("license", "apache-2.0".to_owned())]);
        assert_eq!(of("---\nlicense:\n- mit\n---\n"), [("license", "mit".to_owned())]);
        let other = "---\nlicense: other\nlicense_name: research\nlicense_link: LICENSE\n---\n";
        let expected = [
            ("license", "other".to_owned()),
            ("license_name", "research".to_owned()),
            ("license_link", "https://huggingface.co/a/b/blob/main/LICENSE".to_owned()),
        ];
        assert_eq!(of(other), expected);
        assert_eq!(in_card(other, None).len(), 2, "a link that leads nowhere is left out");
        for none in
            ["", "# no head\n", "---\nlicense: [\n---\n", "---\ntags: [x]\n---\n", "---\nlicense_name: x\n---\n"]
        {
            assert!(of(none).is_empty(), "{none}");
        }
    }
}
