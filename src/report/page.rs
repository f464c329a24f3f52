//! The page around the charts.

use std::fmt::Write;

use shared::{
    metrics::{self, Metric},
    notices::Notice,
};

use super::{
    RunData,
    charts::{self, Section},
    samples::{Pair, Sample},
    scale::brief,
    svg::{self, escape},
};
use crate::summary;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The whole report as one HTML text that needs nothing else.
pub fn render(data: &RunData) -> String {
    let sections: String = charts::sections(&data.records, &data.evaluations).iter().map(section).collect();
    let body = [
        header(data),
        tiles(data),
        notices(data),
        sections,
        samples(&data.samples),
        configuration(&data.configuration),
    ]
    .concat();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main>{body}\
         <footer>Written by tandem {version}.</footer></main><script>{SCRIPT}</script></body></html>\n",
        title = escape(&format!("{} · Tandem", data.name)),
        version = env!("CARGO_PKG_VERSION"),
    )
}

fn header(data: &RunData) -> String {
    let mut facts = Vec::new();
    facts.extend(data.model.as_ref().map(|m| format!("Model {m}")));
    facts.extend(data.dataset.as_ref().map(|d| format!("prompts {d}")));
    facts.push(format!("run {}", data.name));
    format!("<header><h1>Training report</h1><p>{}</p></header>", escape(&facts.join(" · ")))
}

fn tiles(data: &RunData) -> String {
    let records = &data.records;
    let steps = records.last().and_then(|r| r.get(metrics::STEP)).unwrap_or(0.0);
    let seconds: f64 = records.iter().filter_map(|r| r.get(metrics::STEP_TIME)).sum();
    let mut tiles = vec![("steps", format!("{steps:.0}")), ("time in steps", duration(seconds))];
    let change = |metric: &'static Metric| {
        summary::first_and_last(records, metric).map(|(a, b)| format!("{} → {}", brief(a), brief(b)))
    };
    tiles.extend(change(metrics::REWARD).map(|v| ("reward", v)));
    tiles.extend(change(metrics::COMPLETIONS_MEAN_LENGTH).map(|v| ("completion length", v)));
    tiles.extend(summary::tokens_per_second(records, 0).map(|v| ("tokens/s", brief(v))));
    let worst = records.iter().filter_map(|r| r.get(metrics::MISMATCH_KL)).fold(f64::NEG_INFINITY, f64::max);
    if worst.is_finite() {
        tiles.push(("largest mismatch_kl", brief(worst)));
    }
    let list: String = tiles
        .iter()
        .map(|(name, value)| format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape(value), escape(name)))
        .collect();
    let hint = if records.len() > svg::SMOOTH_FROM {
        "<p class=\"hint\">Arrows go from the first to the last steps. Thin lines are single steps, strong lines moving \
         averages.</p>"
    } else {
        "<p class=\"hint\">Arrows go from the first to the last steps.</p>"
    };
    format!("<div class=\"tiles\">{list}</div>{hint}")
}

/// What the learner has noticed; above it, that all was in vain, where it was.
fn notices(data: &RunData) -> String {
    if data.notices.is_empty() && data.nothing.is_none() {
        return String::new();
    }
    let in_vain =
        data.nothing.as_ref().map(|nothing| format!("<p class=\"vain\">{}</p>", escape(&nothing.to_string())));
    let item = |notice: &Notice| {
        let step = if notice.step > 0 { format!("step {}", notice.step) } else { "before step 1".to_owned() };
        format!(
            "<li><span class=\"score\">{step}</span><b>{}</b><p>{}</p></li>",
            escape(&notice.text),
            escape(&notice.remedy)
        )
    };
    let items: String = data.notices.iter().map(item).collect();
    let list = if items.is_empty() { String::new() } else { format!("<ul class=\"card notices\">{items}</ul>") };
    format!("<section><h2>Notices</h2>{}{list}</section>", in_vain.unwrap_or_default())
}

fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

fn section(section: &Section) -> String {
    let charts: Vec<String> = section.charts.iter().filter_map(svg::Chart::draw).collect();
    if charts.is_empty() {
        return String::new();
    }
    format!("<section><h2>{}</h2><div class=\"grid\">{}</div></section>", escape(section.title), charts.concat())
}

fn samples(pairs: &[Pair]) -> String {
    if pairs.is_empty() {
        return String::new();
    }
    let with_prompt = pairs.iter().any(Pair::same_prompt);
    let mut rows = String::new();
    for pair in pairs {
        let prompt = if pair.same_prompt() { text(&pair.before.prompt) } else { "different prompts".to_owned() };
        let prompt = if with_prompt { format!("<td>{prompt}</td>") } else { String::new() };
        let cell = |sample: &Sample| {
            let own = if pair.same_prompt() { String::new() } else { text(&sample.prompt) };
            format!("<td>{}{own}{}</td>", score(sample), text(&sample.text))
        };
        let _ = write!(rows, "<tr>{prompt}{}{}</tr>", cell(&pair.before), cell(&pair.after));
    }
    let heading = if with_prompt { "<th>Prompt</th>" } else { "" };
    format!(
        "<section><h2>Sample completions</h2><div class=\"card\"><table class=\"samples\"><thead><tr>{heading}\
         <th>Before</th><th>After</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )
}

fn text(text: &str) -> String {
    format!("<div class=\"text\">{}</div>", escape(text))
}

fn score(sample: &Sample) -> String {
    let reward = sample.reward.filter(|r| r.is_finite()).map(|r| format!(" · reward <b>{}</b>", brief(r)));
    format!("<span class=\"score\">step {}{}</span>", sample.step, reward.unwrap_or_default())
}

fn configuration(toml: &str) -> String {
    if toml.is_empty() {
        return String::new();
    }
    format!(
        "<section><h2>Configuration</h2><details class=\"card\"><summary>config.toml</summary>{}</details></section>",
        text(toml)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!([duration(4.25), duration(65.0), duration(3720.0)], ["4.2 s", "1 min 05 s", "1 h 02 min"]);
    }
}
