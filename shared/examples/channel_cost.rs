//! What the channel costs: groups per second and bytes per second between two processes, latency of a single group, and
//! where the time goes, against a plain copy of the same bytes in memory.
//!
//! `cargo run --release -p shared --example channel_cost`; the last line is a JSON array, one object per size of group.

use std::{
    env,
    error::Error,
    hint::black_box,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};
use shared::{
    Completion, Episode, FinishReason, Group, GroupId, Placed, PolicyVersion, PromptId, RewardOutcome, RunDir,
    TokenLogprob,
    channel::{
        LearnerEnd, LearnerStatus, RunId, SamplerEnd, frame,
        iox::{IoxLearner, IoxSampler},
    },
    generation::{rng::Stream, testing},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(30);
/// Completions of a group and tokens of a completion.
const SIZES: [(usize, usize); 3] = [(8, 32), (8, 256), (16, 4096)];

fn main() -> Outcome<()> {
    let mut args = env::args().skip(1);
    if let (Some(run_dir), Some(count)) = (args.next(), args.next()) {
        return receiver(Path::new(&run_dir), count.parse()?);
    }
    let rows = SIZES.iter().map(|&(completions, tokens)| measure(completions, tokens)).collect::<Outcome<Vec<_>>>()?;
    println!("{}", Value::from(rows));
    Ok(())
}

fn measure(completions: usize, tokens: usize) -> Outcome<Value> {
    let mut group = make_group(completions, tokens);
    let bytes = frame::encode(&group).len();
    // About 400 MB in all, but at least a few hundred groups.
    let count = (400_000_000 / bytes).clamp(300, 20_000);
    let folder = env::temp_dir().join(format!("channel-cost-{}-{tokens}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut learner =
        Command::new(env::current_exe()?).arg(&folder).arg((count * 2).to_string()).stdout(Stdio::piped()).spawn()?;

    let mut channel = IoxSampler::open(&RunDir::new(&folder), RunId::NONE)?;
    while channel.learner_status()?.is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    let begin = Instant::now();
    for _ in 0..count {
        send(&mut channel, &mut group)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Now one at a time, with pauses in which the receiver falls asleep.
    for index in 0..count {
        if index < 300 {
            thread::sleep(Duration::from_millis(3));
        }
        send(&mut channel, &mut group)?;
    }
    let mut output = String::new();
    learner.stdout.take().ok_or("the receiver's output is not piped")?.read_to_string(&mut output)?;
    learner.wait()?;
    let latencies: Vec<u64> = serde_json::from_str(output.trim())?;
    let mut rested = latencies[count..count + 300].to_vec();
    rested.sort_unstable();
    drop(channel);
    std::fs::remove_dir_all(&folder)?;

    let encoded = frame::encode(&group);
    let mut buffer = Vec::new();
    let encode = time_of(|| frame::encode_into(black_box(&group), RunId::NONE, &mut buffer));
    let decode = time_of(|| drop(black_box(frame::decode::<Placed>(black_box(&encoded)))));
    let copy = time_of(|| buffer.copy_from_slice(black_box(&encoded)));
    let megabytes = bytes as f64 / 1e6;
    Ok(json!({
        "completions": completions,
        "tokens": tokens,
        "frame_bytes": bytes,
        "groups_per_s": (count as f64 / seconds).round(),
        "mb_per_s": (count as f64 * megabytes / seconds).round(),
        "latency_us_p50": rested[150] / 1000,
        "latency_us_p99": rested[297] / 1000,
        "encode_us": encode * 1e6,
        "decode_us": decode * 1e6,
        "memcpy_us": copy * 1e6,
        "memcpy_mb_per_s": (megabytes / copy).round(),
    }))
}

/// Sends the group with the time of sending in place of the prompt's id.
fn send(channel: &mut IoxSampler, group: &mut Placed) -> Outcome<()> {
    group.scored.group.prompt_id = PromptId(nanos());
    Ok(channel.send_group(group, Instant::now() + PATIENCE)?)
}

/// Receives so many groups and prints how long each of them took.
fn receiver(run_dir: &Path, count: usize) -> Outcome<()> {
    let mut channel = IoxLearner::open(&RunDir::new(run_dir), RunId::NONE)?;
    let mut latencies = Vec::with_capacity(count);
    while latencies.len() < count {
        if latencies.is_empty() {
            channel.publish_status(&LearnerStatus::default())?;
        }
        if let Some(group) = channel.receive_group(Duration::from_millis(100))? {
            latencies.push(nanos().saturating_sub(group.prompt_id.0));
        }
    }
    println!("{}", serde_json::to_string(&latencies)?);
    Ok(())
}

fn make_group(completions: usize, tokens: usize) -> Placed {
    let mut stream = Stream::new(&[1]);
    let mut completion = |sample| {
        let token_ids: Vec<u32> = (0..tokens).map(|_| stream.below(150_000) as u32).collect();
        let mut logprob = || stream.next_f64().ln() as f32;
        let logprobs = (0..tokens).map(|_| TokenLogprob { logprob: logprob(), ..TokenLogprob::default() });
        let versions = vec![(0, PolicyVersion(0))];
        Completion {
            episode: Episode::of_one_turn(token_ids, logprobs.collect(), versions, FinishReason::Stop),
            text: "word ".repeat(tokens * 4 / 5),
            rewards: vec![RewardOutcome::Score(1.0)],
            ..testing::completion(sample, Vec::new())
        }
    };
    let group = Group {
        prompt_ids: vec![1; 100],
        prompt_text: "x".repeat(400),
        reward_names: vec![("correctness".into(), 1.0)],
        generation_seconds: 1.0,
        ..testing::group(0, (0..completions as u32).map(&mut completion).collect())
    };
    testing::placed(GroupId::default(), group)
}

/// Seconds of one call, the fastest of many.
fn time_of(mut call: impl FnMut()) -> f64 {
    let timed = (0..300).map(|_| {
        let begin = Instant::now();
        call();
        begin.elapsed()
    });
    timed.min().unwrap_or_default().as_secs_f64()
}

fn nanos() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}
