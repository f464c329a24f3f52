//! The guide as a book, built by mdBook.
//!
//! Pages of `docs/` link to pages at the root, to examples and to sources, and mdBook knows only files of its own
//! folder. So the book is made of a copy: the pages, and all files that they link to, laid out as in the repository.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{host::Host, markdown::links};

/// The guide's table of contents.
const CONTENTS: &str = "docs/SUMMARY.md";
/// mdBook's options, beside the table of contents: the book has both, and the root of the repository has neither.
const OPTIONS: &str = "docs/book.toml";

/// Builds the book into `target/book`, or says that mdBook is missing.
///
/// # Errors
/// When a file cannot be read or written, or when mdBook fails.
pub fn build(host: &Host) -> Result<()> {
    let mdbook = std::env::split_paths(&host.path).map(|folder| folder.join("mdbook")).find(|path| path.is_file());
    let Some(mdbook) = mdbook else {
        eprintln!("no book is made, as `mdbook` is not on the path: `cargo install mdbook --locked` installs it");
        return Ok(());
    };
    let (source, book) = (host.target.join("book-source"), host.target.join("book"));
    if source.exists() {
        fs::remove_dir_all(&source).with_context(|| source.display().to_string())?;
    }
    copy(&host.root, &source)?;
    let output = host.command(mdbook).arg("build").arg(&source).arg("--dest-dir").arg(&book).output()?;
    if !output.status.success() {
        bail!("mdbook cannot build the guide: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    eprintln!("the guide as a book: {}", book.join("index.html").display());
    Ok(())
}

/// Copies the guide and the files that it links to, with a table of contents for all pages among them.
fn copy(root: &Path, to: &Path) -> Result<()> {
    let (pages, files) = linked(root)?;
    for page in &pages {
        let text = in_the_book(&read(&root.join(page))?);
        write(&to.join(in_the_book(&page.display().to_string())), text.as_bytes())?;
    }
    for file in &files {
        let bytes = fs::read(root.join(file)).with_context(|| file.display().to_string())?;
        write(&to.join(file), &bytes)?;
    }
    write(&to.join("SUMMARY.md"), table(&pages, root)?.as_bytes())?;
    write(&to.join("book.toml"), read(&root.join(OPTIONS))?.as_bytes())
}

/// A page, or its path, with the names that mdBook gives: the page of a folder is its index, and the table of contents
/// stands beside each page and is none itself.
fn in_the_book(text: &str) -> String {
    let links = text.replace("](SUMMARY.md)", "](index.md)").replace("README.md)", "index.md)");
    let links = links.replace("README.md#", "index.md#");
    links.strip_suffix("README.md").map_or(links.clone(), |folder| format!("{folder}index.md"))
}

/// All pages that can be reached from README and the table of contents, and all other files that these link to,
/// relative to the root. Of a folder, these are the files in it.
fn linked(root: &Path) -> Result<(BTreeSet<PathBuf>, BTreeSet<PathBuf>)> {
    let root = root.canonicalize()?;
    let (mut pages, mut files) = (BTreeSet::from([PathBuf::from("README.md")]), BTreeSet::new());
    let mut open = vec![PathBuf::from(CONTENTS), PathBuf::from("README.md")];
    while let Some(page) = open.pop() {
        let place = root.join(&page);
        let folder = place.parent().context("a page lies in a folder")?;
        for (_, target) in links(&read(&place)?) {
            // What is no path of a file is an address, or a heading of the same page.
            let target = target.split('#').next().filter(|path| !path.is_empty() && !path.contains("://"));
            let Some(Ok(path)) = target.map(|path| folder.join(path).canonicalize()) else { continue };
            let found: Vec<PathBuf> = match path.is_dir() {
                true => fs::read_dir(&path)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?,
                false => vec![path],
            };
            for path in found.iter().filter(|path| path.is_file()) {
                let Ok(path) = path.strip_prefix(&root) else { continue };
                if path.extension().is_none_or(|end| end != "md") {
                    files.insert(path.to_path_buf());
                } else if path != Path::new(CONTENTS) && pages.insert(path.to_path_buf()) {
                    open.push(path.to_path_buf());
                }
            }
        }
    }
    Ok((pages, files))
}

/// The table of contents of the book: README, the guide's own table, then all other pages by their titles.
fn table(pages: &BTreeSet<PathBuf>, root: &Path) -> Result<String> {
    let contents = read(&root.join(CONTENTS))?;
    let (title, rest) = contents.split_once('\n').context("the table of contents has a title")?;
    let listed = rest.replace("](", "](docs/");
    let mut table = format!("{title}\n\n[Tandem](README.md)\n{listed}\n# In the repository\n\n");
    for page in pages.iter().filter(|page| !page.starts_with("docs") && *page != Path::new("README.md")) {
        let text = read(&root.join(page))?;
        let title = text.lines().next().unwrap_or_default().trim_start_matches(['#', ' ']);
        table.push_str(&format!("- [{title}]({})\n", page.display()));
    }
    Ok(in_the_book(&table))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    #[test]
    fn mdbook_is_given_the_copy_and_its_errors_are_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("docs")).unwrap();
        let pages =
            [(CONTENTS, "# Contents\n\n- [A](a.md)\n"), ("docs/a.md", "# A\n"), ("README.md", ""), (OPTIONS, "")];
        for (name, text) in pages {
            fs::write(dir.path().join(name), text).unwrap();
        }
        build(&fake::host(dir.path(), &[])).unwrap();
        assert!(!dir.path().join("target").exists(), "without mdbook nothing is made");
        let host = fake::host(
            dir.path(),
            &[("mdbook", "while read -r line; do echo \"$line\"; done < \"$2/SUMMARY.md\" >&2; exit 3")],
        );
        let error = build(&host).unwrap_err().to_string();
        assert!(error.contains("[Tandem](index.md)") && error.contains("- [A](docs/a.md)"), "{error}");
    }

    /// Links of a copied page lead to copied files, and every copied page is in the table of contents.
    #[test]
    fn the_copy_has_all_that_its_pages_link_to() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let to = tempfile::tempdir().unwrap();
        copy(root, to.path()).unwrap();
        let table = read(&to.path().join("SUMMARY.md")).unwrap();
        let listed: BTreeSet<&str> = links(&table).map(|(_, target)| target).collect();
        assert!(listed.contains("index.md") && listed.contains("docs/index.md") && listed.contains("ARCHITECTURE.md"));
        assert_eq!(listed.len(), linked(root).unwrap().0.len());
        for page in listed.iter().map(|page| to.path().join(page)) {
            let text = read(&page).unwrap();
            for (_, target) in links(&text).filter(|(_, target)| !target.contains("://")) {
                let file = page.parent().unwrap().join(target.split('#').next().unwrap());
                assert!(file.exists(), "{}: {target}", page.display());
            }
        }
    }
}
