//! `tandem serve` under load: many clients at once, for long enough that whatever is not given back shows.

use std::{io::Read, time::Duration};

use harness::load::Load;

use super::serve::{Serve, model};

/// Resident memory that may come on top between the second quarter of the time and the last, beside two per cent. There
/// are some thousands of requests between them, each of which takes several kilobytes for its tokens and chunks until
/// it is answered: what is kept of each shows. What the allocator holds for its threads varies by less than a megabyte.
const SLACK: u64 = 4 << 20;

#[test]
fn many_clients_get_whole_answers_and_everything_is_given_back() {
    let serve = Serve::start(&model(), &[]);
    let load = Load {
        clients: 64,
        time: Duration::from_secs(20),
        prompt_tokens: 64,
        completion_tokens: 128,
        adapters: 0,
        look: Duration::from_millis(100),
    };
    let outcome = load.run(serve.port(), serve.process(), |_| ());
    assert_eq!((outcome.failed, &outcome.errors[..]), (0, &[][..]));
    assert!(outcome.completions > load.clients as u64, "{} completions", outcome.completions);
    assert_eq!(outcome.first_token.len() as u64, outcome.completions);

    let quarter = |number: usize| {
        let of = outcome.looks.iter().filter(|look| look.at.as_secs_f64() * 4.0 / 20.0 >= number as f64);
        let of = of.filter(|look| look.at.as_secs_f64() * 4.0 / 20.0 < number as f64 + 1.0);
        of.map(|look| look.resident).max().expect("it was looked at all the time")
    };
    let (second, last) = (quarter(1), quarter(3));
    assert!(last <= second + second / 50 + SLACK, "{second} bytes of memory became {last}: {:?}", outcome.looks);

    let mut page = String::new();
    serve.get("/metrics").read_to_string(&mut page).unwrap();
    let (completions, tokens) = (outcome.completions, outcome.tokens);
    for line in [
        "tandem_num_requests_running 0".to_owned(),
        "tandem_num_requests_waiting 0".to_owned(),
        "tandem_completions_cancelled_total 0".to_owned(),
        format!("tandem_generation_tokens_total {tokens}"),
        format!("tandem_prompt_tokens_total {}", completions * load.prompt_tokens as u64),
        format!(
            "tandem_http_requests_total{{route=\"/v1/completions\",status=\"200\",model_name=\"tiny\"}} {completions}"
        ),
        format!("tandem_time_to_first_token_seconds_count {completions}"),
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
}
