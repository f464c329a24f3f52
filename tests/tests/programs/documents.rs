//! What the documents tell users to write is what the programs accept.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use harness::{cli, json_schema};
use shared::{
    config::{AdvantageEstimator, Choice, LossType, OPTIONS, TrainConfig, layers, option, schema},
    metrics::catalogue,
};

// The programs that print the pages: their `main` is of no use here.
#[expect(dead_code)]
#[path = "../../../shared/examples/configuration.rs"]
mod configuration;
#[expect(dead_code)]
#[path = "../../../shared/examples/losses.rs"]
mod losses;
#[expect(dead_code)]
#[path = "../../../shared/examples/metrics.rs"]
mod metrics;
#[expect(dead_code)]
#[path = "../../../shared/examples/notices.rs"]
mod notices;

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The first fenced block of a language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("the document has such a block");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_configuration_of_the_readme_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    fs::write(&file, block(&document("README.md"), "toml")).unwrap();
    let config = layers::load(Some(&file), &Vec::new()).unwrap();
    config.validate().unwrap();
    assert_eq!(config.max_steps, Some(200));
    for function in &config.reward_funcs {
        let listed = cli::run("rollout", ["rewards"]).success().stdout;
        assert!(listed.contains(function), "{function} is not in: {listed}");
    }
}

#[test]
fn the_page_of_options_is_what_the_code_says() {
    let stale = document("docs/configuration.md") != configuration::page();
    assert!(!stale, "docs/configuration.md is stale: run `cargo xtask docs` and commit the page");
}

#[test]
fn the_schema_is_what_the_code_says() {
    let printed = cli::run("tandem", ["schema"]).success().stdout;
    assert_eq!(printed, schema::text());
    let stale = document("docs/run.schema.json") != printed;
    assert!(!stale, "docs/run.schema.json is stale: run `cargo xtask docs` and commit the schema");
}

/// Every configuration in the repository: of the examples, of runs of earlier builds, and in the documents.
#[test]
fn every_configuration_is_valid_under_the_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut texts = Vec::new();
    for folder in ["examples", "tests/fixtures"].iter().map(|folder| root.join(folder)) {
        let found =
            files(&folder).into_iter().filter(|path| path.ends_with("run.toml") || path.ends_with("config.toml"));
        texts.extend(found.map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap())));
    }
    let of_files = texts.len();
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for path in pages.filter(|path| path.extension().is_some_and(|end| end == "md")).chain([root.join("README.md")]) {
        let text = fs::read_to_string(&path).unwrap();
        let blocks = text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
        texts.extend(blocks.map(|block| (path.display().to_string(), block)));
    }
    assert!(of_files >= 7 && texts.len() >= of_files + 10, "{of_files} files and {} in all", texts.len());
    let schema = schema::schema();
    for (place, text) in texts {
        let mut values: toml::Table = text.parse().unwrap_or_else(|error| panic!("{place}: {error}"));
        // `tandem sweep` takes this table away. It has lists of values of the options.
        let sweep = values.remove("sweep").map(|table| table.as_table().cloned().expect("a table"));
        let varied = sweep.into_iter().flatten().flat_map(|(key, list)| {
            let list = list.as_array().cloned().unwrap_or_else(|| panic!("{place}: `{key}` is no list"));
            list.into_iter().map(move |value| toml::Table::from_iter([(key.clone(), value)]))
        });
        for values in varied.chain([values.clone()]) {
            let valid = json_schema::check(&schema, &serde_json::to_value(values).unwrap());
            valid.unwrap_or_else(|error| panic!("{place}: {error}: {text}"));
        }
    }
}

#[test]
fn the_page_of_metrics_is_what_the_code_says() {
    let stale = document("docs/metrics.md") != metrics::page();
    assert!(!stale, "docs/metrics.md is stale: run `cargo xtask docs` and commit the page");
}

#[test]
fn the_page_of_notices_is_what_the_code_says() {
    let stale = document("docs/notices.md") != notices::page();
    assert!(!stale, "docs/notices.md is stale: run `cargo xtask docs` and commit the page");
}

/// Every kind that the sources make a notice of is in the table, and the table has no other.
#[test]
fn every_notice_that_is_made_is_on_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut made = BTreeSet::new();
    for path in ["learner/src", "shared/src", "src"].iter().flat_map(|folder| sources(&root.join(folder))) {
        let text = fs::read_to_string(path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        // What the first argument is; one that a closure takes is named where that is called.
        for call in ["Notice::new(", "notice("] {
            let kinds = text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix("NoticeKind::"));
            made.extend(kinds.map(|rest| rest.chars().take_while(char::is_ascii_alphanumeric).collect::<String>()));
        }
    }
    let word = |name: &str| {
        let mut word = String::new();
        for c in name.chars() {
            if c.is_ascii_uppercase() && !word.is_empty() {
                word.push('_');
            }
            word.push(c.to_ascii_lowercase());
        }
        word
    };
    let page = document("docs/notices.md");
    let rows: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|row| *row != "kind")
        .collect();
    for row in &rows {
        assert!(made.iter().any(|name| word(name) == *row), "nothing makes the notice `{row}`");
    }
    for name in &made {
        assert!(rows.contains(word(name).as_str()), "`{}` is not on the page", word(name));
    }
}

#[test]
fn the_page_of_methods_is_what_the_code_says() {
    let stale = document("docs/losses.md") != losses::page();
    assert!(!stale, "docs/losses.md is stale: run `cargo xtask docs` and commit the page");
}

/// TRL counts optimiser updates where we count generation batches; who comes from there reads it at the option and on
/// the page.
#[test]
fn what_is_counted_otherwise_than_in_trl_is_said() {
    let page = document("docs/from-trl.md");
    let row = page.lines().find(|line| line.starts_with("| `max_steps`")).expect("the page's table has the counts");
    for key in ["max_steps", "save_steps", "eval_steps", "ref_model_sync_steps"] {
        let doc = option(key).unwrap().doc;
        assert!(doc.contains("generation batches") && doc.contains("TRL") && doc.contains("updates"), "{key}: {doc}");
        assert!(row.contains(&format!("`{key}`")), "{key}: {row}");
    }
    assert!(row.contains("generation batches") && row.contains("optimiser updates"), "{row}");
    assert!(option("warmup_steps").unwrap().doc.contains("Optimiser updates (not steps)"));
}

/// Only an fp32 sampler agrees with the learner; one that rounds does not, synchronous or not.
#[test]
fn the_correction_is_without_effect_for_exact_samplers_only() {
    for page in ["README.md", "docs/from-trl.md"].map(document) {
        for line in page.lines().filter(|line| line.to_lowercase().contains("without effect")) {
            assert!(line.contains("fp32") && line.contains("int8, bf16 or fp16"), "{line}");
        }
    }
}

#[test]
fn every_option_is_on_the_page_with_its_meaning() {
    let page = document("docs/configuration.md");
    let titles = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    assert!(titles.eq(OPTIONS.iter().map(|option| option.key)));
    // What a run has where nothing is said, read from a resolved configuration and not from what the page is made of.
    let defaults: toml::Table = layers::to_toml(&TrainConfig::default()).parse().unwrap();
    for (key, value) in &defaults {
        let (_, section) = page.split_once(&format!("\n### `{key}`\n")).unwrap_or_else(|| panic!("{key}"));
        let line = section.split("\n\n").find(|line| !line.trim().is_empty()).unwrap();
        let nothing = value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("");
        if nothing {
            assert!(line.contains("empty by default") || line.contains("required"), "{key}: {line}");
            continue;
        }
        let (_, shown) = line.split_once("default `").unwrap_or_else(|| panic!("{key}: {line}"));
        let shown = shown.split('`').next().unwrap();
        let read = layers::parse(&format!("{key} = {}", toml_of(shown)), Path::new("page"), &Vec::new());
        let read = read.unwrap_or_else(|error| panic!("{key} = {shown}: {error}"));
        let found: toml::Table = layers::to_toml(&read).parse().unwrap();
        assert_eq!(found.get(key), Some(value), "{key}: {line}");
    }
    for text in [
        "\n## Mismatch between sampler and learner\n",
        "*number in [0, 1), default `0.2`; also spelt `clip_ratio`,",
        "(and above, without `epsilon_high`). TRL `epsilon`.\n",
        "- `geo_mean` (also `gmpo`): ",
    ] {
        assert!(page.contains(text), "{text}");
    }
}

/// A value of the page as a file has it.
fn toml_of(shown: &str) -> String {
    let is_value = format!("x = {shown}").parse::<toml::Table>().is_ok();
    if is_value { shown.to_owned() } else { format!("{shown:?}") }
}

#[test]
fn the_page_explains_every_metric_under_its_own_heading() {
    let page = document("docs/metrics.md");
    let titles: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
    assert_eq!(titles, catalogue::all().map(|metric| metric.key).collect::<Vec<_>>());
    // Links of the introduction lead to headings, whose anchors leave out everything but letters, digits and `_`.
    let anchors: BTreeSet<String> =
        titles.iter().map(|title| title.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect()).collect();
    for link in page.split("](#").skip(1).map(|rest| rest.split(')').next().unwrap()) {
        assert!(anchors.contains(link), "#{link}");
    }
}

/// Each loss and estimator, with the options that usually go with it, is a configuration that is valid and has nothing
/// to remark on that concerns the method.
#[test]
fn every_recipe_is_a_valid_run() {
    let recipes = losses::recipes();
    let recipes = recipes.as_array().unwrap();
    assert_eq!(recipes.len(), LossType::ALL.len() + AdvantageEstimator::ALL.len() - 1);
    let names: BTreeSet<&str> = recipes.iter().map(|recipe| recipe["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), recipes.len(), "two recipes have one name");
    for recipe in recipes {
        let options = recipe["options"].as_array().unwrap().iter().map(|option| option.as_str().unwrap());
        let pairs = options.map(|option| option.trim_start_matches("--").split_once('=').unwrap());
        let mut overrides: Vec<(String, String)> = pairs.map(|(key, value)| (key.into(), value.into())).collect();
        overrides.extend(
            [("model", "m"), ("dataset", "d"), ("reward_funcs", "format")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let config = layers::load(None, &overrides).unwrap();
        config.validate().unwrap_or_else(|error| panic!("{recipe}: {error}"));
        assert_eq!(config.options_without_effect(), Vec::<&str>::new(), "{recipe}");
    }
}

/// The source files of all packages.
fn all_sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["src", "rollout", "learner", "shared", "exporters", "tests", "xtask"];
    folders.iter().flat_map(|folder| sources(&root.join(folder))).collect()
}

/// Whether there is a test, by `file::function`.
fn is_test(sources: &[PathBuf], test: &str) -> bool {
    let (file, function) = test.split_once("::").unwrap_or_else(|| panic!("{test}"));
    // A folder's own file, and that of its tests, go by the folder's name too.
    let is_named = |path: &&PathBuf| {
        let (stem, folder) = (path.file_stem(), path.parent().and_then(Path::file_name));
        let is_of_folder = stem.is_some_and(|stem| stem == "mod" || stem == "tests");
        stem.is_some_and(|stem| stem == file) || is_of_folder && folder.is_some_and(|folder| folder == file)
    };
    let declared = ["#[test]\nfn", "#[tokio::test]\nasync fn"].map(|begin| format!("{begin} {function}("));
    sources.iter().filter(is_named).any(|path| {
        let text = fs::read_to_string(path).unwrap();
        let text = text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        declared.iter().any(|declared| text.contains(declared))
    })
}

/// Every line of the page of faults ends with tests that exist, as `file::function`.
#[test]
fn the_page_of_faults_names_tests_that_exist() {
    let (text, sources) = (document("docs/faults.md"), all_sources());
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| fault")).collect();
    assert!(rows.len() > 30);
    for row in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap();
        for test in cell.split(',') {
            assert!(is_test(&sources, test.trim().trim_matches('`')), "{test}");
        }
    }
}

/// So does every invariant.
#[test]
fn the_architecture_names_tests_that_exist() {
    let (text, sources) = (document("ARCHITECTURE.md"), all_sources());
    let is_path =
        |words: &&str| words.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c));
    // A sentence for a name, not a function of the code.
    let is_sentence = |words: &&str| words.split_once("::").is_some_and(|(_, name)| name.matches('_').count() > 2);
    let tests: Vec<&str> = text.split('`').skip(1).step_by(2).filter(is_path).filter(is_sentence).collect();
    assert!(tests.len() > 40, "{tests:?}");
    let missing: Vec<&&str> = tests.iter().filter(|test| !is_test(&sources, test)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The section of the page is all that has to be known: no other production file names these options.
#[test]
fn an_option_of_the_engine_has_the_places_that_the_page_lists() {
    const OF_ENGINE: [&str; 3] = ["rollout_prefill_batch", "rollout_candidates", "rollout_cuda_graphs"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = document("docs/extending.md");
    let section =
        page.split("\n## ").find(|section| section.starts_with("An option\n")).expect("the section of options");
    let links = section.split("](../").skip(1).map(|link| link.split(')').next().unwrap_or_default());
    let listed: BTreeSet<&str> = links.collect();
    let mut naming = BTreeSet::new();
    for file in
        ["shared", "rollout", "learner", "exporters", "src"].iter().flat_map(|folder| sources(&root.join(folder)))
    {
        let path = file.strip_prefix(&root).unwrap().display().to_string();
        if path.contains("/tests/") || path.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        if OF_ENGINE.iter().any(|option| production.contains(option)) {
            naming.insert(path);
        }
    }
    // What one option means for another is said of both.
    let found: BTreeSet<&str> =
        naming.iter().map(String::as_str).filter(|path| !path.starts_with("shared/src/config/validate/")).collect();
    assert_eq!(found, listed, "files that name an option of the engine, and those that docs/extending.md lists");
    let validates = naming.iter().filter(|path| path.starts_with("shared/src/config/validate/")).count();
    assert!(validates <= 1, "{naming:?}");
}

/// The Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .collect()
}
