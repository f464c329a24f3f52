//! The page around the data.

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

use super::held::Held;
use crate::view::assets::{SCRIPTS, STYLES};

/// The whole report as one HTML text.
///
/// A browser runs its own scripts and styles only, whatever the data hold: their hashes identify them.
pub fn render(data: &Held) -> String {
    let scripts = SCRIPTS.map(|asset| asset.text).concat();
    let styles = STYLES.map(|asset| asset.text).concat();
    // `<` could end a script element.
    let json = serde_json::to_string(data).expect("it is valid JSON").replace('<', "\\u003c");
    let hash = |text: &str| BASE64_STANDARD.encode(Sha256::digest(text));
    let (script, style) = (hash(&scripts), hash(&styles));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{script}'; \
         style-src 'sha256-{style}'; img-src data:; base-uri 'none'; form-action 'none'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title} · Tandem</title><style>{styles}</style></head>\n<body>\
         <noscript><p>This page is drawn by its scripts, which this browser does not run.</p></noscript>\
         <div id=\"page\"></div><footer><p>Written by tandem {version}.</p></footer>\n\
         <script type=\"application/json\" \
         id=\"tandem-data\">{json}</script>\n<script>{scripts}</script></body></html>\n",
        title = escape(data.name()),
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Escapes text, so that it is no markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
