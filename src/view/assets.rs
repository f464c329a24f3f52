//! The files of the page, compiled in.

/// A file.
#[derive(Debug, Clone, Copy)]
pub struct Asset {
    name: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Its content.
    pub text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

macro_rules! assets {
    ($($kind:ident $name:literal $path:literal)*) => {
        [$(Asset { name: $name, kind: $kind, text: include_str!(concat!("assets/", $path)) }),*]
    };
}

/// Scripts, in the order in which they build on each other.
pub const SCRIPTS: [Asset; 13] = assets! {
    SCRIPT "uPlot.js" "uplot/uPlot.iife.min.js"
    SCRIPT "dom.js" "dom.js"
    SCRIPT "format.js" "format.js"
    SCRIPT "source.js" "source.js"
    SCRIPT "charts.js" "charts.js"
    SCRIPT "lanes.js" "lanes.js"
    SCRIPT "tokens.js" "tokens.js"
    SCRIPT "samples.js" "samples.js"
    SCRIPT "panels.js" "panels.js"
    SCRIPT "runs.js" "runs.js"
    SCRIPT "picker.js" "picker.js"
    SCRIPT "workers.js" "workers.js"
    SCRIPT "app.js" "app.js"
};

/// Style sheets; later ones override earlier ones.
pub const STYLES: [Asset; 2] = assets! {
    STYLE "uPlot.css" "uplot/uPlot.min.css"
    STYLE "style.css" "style.css"
};

const HTML: &str = "text/html; charset=utf-8";
const PAGE: [Asset; 1] = assets! { HTML "index.html" "index.html" };

/// A file by its name.
pub fn find(name: &str) -> Option<Asset> {
    PAGE.iter().chain(&STYLES).chain(&SCRIPTS).find(|asset| asset.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_every_file_and_no_other_in_order() {
        let html = find("index.html").unwrap().text;
        let loaded =
            |before: &str| html.split(before).skip(1).map(|rest| rest.split('"').next().unwrap()).collect::<Vec<_>>();
        assert_eq!(loaded("src=\"/assets/"), SCRIPTS.map(|asset| asset.name));
        assert_eq!(loaded("href=\"/assets/"), STYLES.map(|asset| asset.name));
        assert!(find("nothing.js").is_none());
    }

    /// See `uplot/README.md`.
    #[test]
    fn the_chart_library_is_as_published() {
        let readme = include_str!("assets/uplot/README.md");
        let text = find("uPlot.js").unwrap().text;
        let hash: String =
            <sha2::Sha256 as sha2::Digest>::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(readme.contains(&format!("{hash}  uPlot.iife.min.js")), "{hash}");
    }
}
