//! Pushes to a Hub of the tests, with all that can go wrong on the way.

use std::time::{Duration, Instant};

use harness::hub::{Faults, Hub as Server, Refusal, WriteFaults};

use super::{PushError, PushFile, PushOrder, Pushed, check_names};
use crate::{Hub, Settings};

const TOKEN: &str = "hf_secret";
const REPO: &str = "models/me/mine";

fn settings(endpoint: &str) -> Settings {
    Settings {
        endpoint: endpoint.to_owned(),
        cache: "/no/such/cache".into(),
        token: Some(TOKEN.to_owned()),
        unread: None,
        offline: None,
        patience: Duration::from_secs(60),
    }
}

fn hub(server: &Server) -> Hub {
    Hub::new(settings(&server.endpoint), || false, |_| {})
}

fn files() -> Vec<PushFile> {
    let weights: Vec<u8> = (0..5000u32).map(|n| (n % 251) as u8).collect();
    vec![
        PushFile::of_bytes("README.md", *b"---\ntags:\n- x\n---\n# Mine\n"),
        PushFile::of_bytes("config.json", *b"{}"),
        PushFile::of_bytes("merges.txt", *b""),
        PushFile::of_bytes("model.safetensors", weights),
    ]
}

fn order(files: &[PushFile]) -> PushOrder<'_> {
    let replaces = |name: &str| name.ends_with(".safetensors");
    PushOrder { repo: "me/mine", revision: "main", public: false, message: "the first", files, replaces }
}

fn push(server: &Server) -> Result<Pushed, PushError> {
    hub(server).push(&order(&files()))
}

fn failure(server: &Server, writes: WriteFaults) -> String {
    server.faults(Faults { writes, ..Faults::default() });
    let error = push(server).unwrap_err().to_string();
    assert!(!error.contains(TOKEN), "{error}");
    error
}

fn refusal(path: &'static str, status: u16) -> Refusal {
    Refusal { path, status, words: format!("no, and certainly not for {TOKEN}"), times: u32::MAX, retry_after: None }
}

/// Whether a branch has exactly the files of these tests.
fn is_whole(server: &Server, branch: &str) -> bool {
    let Some(mut found) = server.files(REPO, branch) else { return false };
    found.remove(".gitattributes");
    let sent = files();
    found.len() == sent.len() && sent.iter().all(|file| found.get(file.name()) == Some(&file.bytes().unwrap()))
}

fn nothing_is_visible(server: &Server) -> bool {
    server.summaries(REPO).is_none_or(|summaries| summaries.is_empty())
}

#[test]
fn one_commit_has_all_files_and_a_second_push_has_nothing_to_do() {
    let server = Server::new();
    let pushed = push(&server).unwrap();
    assert!(pushed.created && pushed.private && pushed.commit.is_some() && server.is_private(REPO), "{pushed:?}");
    assert_eq!((pushed.sent, pushed.page), (5000, format!("{}/me/mine", server.endpoint)));
    assert!(is_whole(&server, "main"));
    assert_eq!(server.summaries(REPO).unwrap(), ["the first"]);
    let _ = server.contents();
    let again = push(&server).unwrap();
    assert!(again.commit.is_none() && !again.created && again.sent == 0, "{again:?}");
    assert!(server.contents().iter().all(|(path, _)| !path.starts_with("/store/") && !path.contains("/commit/")));
    // A change of one small file sends that file alone.
    let mut changed = files();
    changed[1] = PushFile::of_bytes("config.json", *b"{\"a\": 1}");
    let pushed = hub(&server).push(&order(&changed)).unwrap();
    assert!(pushed.commit.is_some() && pushed.sent == 0, "{pushed:?}");
    let sent = server.contents();
    let (_, commit) = sent.iter().find(|(path, _)| path.contains("/commit/")).unwrap();
    assert!(!String::from_utf8_lossy(commit).contains("model.safetensors"));
}

#[test]
fn the_token_goes_to_the_hub_alone_and_into_no_content() {
    let server = Server::new();
    for parts in [None, Some(1024)] {
        server.faults(Faults {
            token: Some(TOKEN),
            writes: WriteFaults { parts, ..WriteFaults::default() },
            ..Faults::default()
        });
        let files = [PushFile::of_bytes("model.safetensors", vec![parts.unwrap_or(1) as u8; 5000])];
        let _ = hub(&server).push(&order(&files)).unwrap();
        let (requests, tokens) = (server.requests(), server.tokens());
        assert!(requests.iter().any(|request| request.starts_with("PUT /store/")), "{requests:?}");
        for (request, token) in requests.iter().zip(tokens) {
            assert_eq!(token.is_none(), request.starts_with("PUT /store/"), "{request}");
        }
        let sent = server.contents();
        assert!(sent.iter().all(|(_, content)| !String::from_utf8_lossy(content).contains(TOKEN)));
    }
}

#[test]
fn large_files_go_in_parts_where_the_store_wants_them_so() {
    for size in [999, 1250, 5000, 6000] {
        let server = Server::new();
        server.faults(Faults {
            writes: WriteFaults { parts: Some(size), ..WriteFaults::default() },
            ..Faults::default()
        });
        let _ = push(&server).unwrap();
        assert!(is_whole(&server, "main"), "{size}");
        let parts = server.requests().iter().filter(|request| request.starts_with("PUT ")).count();
        assert_eq!(parts, 5000usize.div_ceil(size));
    }
}

#[test]
fn a_branch_of_its_own_is_made_and_main_stays_as_it_is() {
    let server = Server::new();
    let files = files();
    let pushed = hub(&server).push(&PushOrder { revision: "exp/2", ..order(&files) }).unwrap();
    assert_eq!(pushed.page, format!("{}/me/mine/tree/exp/2", server.endpoint));
    assert!(is_whole(&server, "exp/2") && !is_whole(&server, "main"));
    assert_eq!(server.files(REPO, "main").unwrap().keys().collect::<Vec<_>>(), [".gitattributes"]);
}

#[test]
fn weights_of_the_model_before_go_in_the_same_commit() {
    let server = Server::new();
    let before = [("model-00001-of-00002.safetensors", "old"), ("notes.md", "mine"), ("model.safetensors", "old")];
    let _ = server.commit(REPO, before.map(|(name, text)| (name.to_owned(), text)));
    server.hide(REPO);
    let pushed = push(&server).unwrap();
    assert_eq!(pushed.removed, ["model-00001-of-00002.safetensors"]);
    let found = server.files(REPO, "main").unwrap();
    assert!(found.contains_key("notes.md") && found["model.safetensors"].len() == 5000);
    assert!(!found.contains_key("model-00001-of-00002.safetensors"));
}

#[test]
fn nothing_is_sent_to_a_public_repository_unless_that_is_said() {
    let server = Server::new();
    let _ = server.commit(REPO, [("config.json".to_owned(), "old")]);
    let error = push(&server).unwrap_err().to_string();
    assert!(error.contains("is public, and nothing was sent") && error.contains("--public"), "{error}");
    assert!(server.contents().iter().all(|(path, _)| path == "/api/validate-yaml"));
    let files = files();
    let public = PushOrder { public: true, ..order(&files) };
    assert!(!hub(&server).push(&public).unwrap().private);
    // A Hub that does not do what it was asked for.
    let server = Server::new();
    assert!(failure(&server, WriteFaults { public: true, ..WriteFaults::default() }).contains("is public"));
    assert!(nothing_is_visible(&server) && server.stored() == 0);
    server.faults(Faults::default());
    let _ = server.requests();
    let made = hub(&Server::new()).push(&public);
    assert!(made.is_ok_and(|made| made.created && !made.private));
}

#[test]
fn every_refusal_says_what_was_to_be_done_and_why_not() {
    for (path, status, said) in [
        ("/api/repos/create", 401, "does not accept the token (no, and certainly not for …)"),
        ("/api/repos/create", 403, "making the repository: the token may not (no, and certainly"),
        ("/preupload/", 404, "asking how the files are wanted: "),
        ("/preupload/", 409, "in conflict with something else"),
        ("/info/lfs/objects/batch", 403, "asking the store of large files: the token may not"),
        ("/store/", 403, "sending model.safetensors: the store of large files answers with status 403"),
        ("/verify/", 404, "sending model.safetensors: the store of large files answers with status 404"),
        ("/commit/", 403, "making the commit: the token may not"),
        ("/commit/", 400, "making the commit: "),
    ] {
        let server = Server::new();
        let error = failure(&server, WriteFaults { refuse: Some(refusal(path, status)), ..WriteFaults::default() });
        assert!(error.contains(said), "{path} {status}: {error}");
        assert!(nothing_is_visible(&server), "{path} {status}");
    }
}

#[test]
fn an_overloaded_server_is_asked_again_and_not_for_ever() {
    let server = Server::new();
    let passing = |path, status, times| {
        let refuse = Some(Refusal { times, ..refusal(path, status) });
        Faults { writes: WriteFaults { refuse, ..WriteFaults::default() }, ..Faults::default() }
    };
    for (path, status) in [("/preupload/", 503), ("/store/", 500), ("/commit/", 502)] {
        let server = Server::new();
        server.faults(passing(path, status, 1));
        let _ = push(&server).unwrap();
        assert!(is_whole(&server, "main"), "{path}");
    }
    server.faults(passing("/preupload/", 500, u32::MAX));
    let error = push(&server).unwrap_err().to_string();
    assert!(error.contains("answers with status 500") && error.contains("4 times; nothing of this push"), "{error}");
    // The server's own time is kept, and a long one ends the push.
    let wait = |seconds, times| {
        let refuse = Some(Refusal { times, retry_after: Some(seconds), ..refusal("/preupload/", 429) });
        Faults { writes: WriteFaults { refuse, ..WriteFaults::default() }, ..Faults::default() }
    };
    server.faults(wait(3, 1));
    let begin = Instant::now();
    let _ = push(&server).unwrap();
    assert!(begin.elapsed() > Duration::from_secs(3));
    server.faults(wait(7200, u32::MAX));
    let error = push(&server).unwrap_err().to_string();
    assert!(error.contains("wants to be asked again in 7200 s"), "{error}");
}

#[test]
fn a_connection_that_is_cut_is_made_again_and_a_silent_one_is_given_up() {
    let server = Server::new();
    server
        .faults(Faults { writes: WriteFaults { cut: Some((1000, 2)), ..WriteFaults::default() }, ..Faults::default() });
    let _ = push(&server).unwrap();
    assert!(is_whole(&server, "main"));
    for (writes, said) in [
        (WriteFaults { cut: Some((1000, u32::MAX)), ..WriteFaults::default() }, "sending model.safetensors: no answer"),
        (WriteFaults { silent: Some(1000), ..WriteFaults::default() }, "nothing has been taken for 0.6 s"),
    ] {
        let server = Server::new();
        server.faults(Faults { writes, ..Faults::default() });
        let impatient = Settings { patience: Duration::from_millis(600), ..settings(&server.endpoint) };
        let impatient = Hub::new(impatient, || false, |_| {});
        let error = impatient.push(&order(&files())).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("the same command goes on from here"), "{error}");
        assert!(nothing_is_visible(&server));
        // What was cut is no obstacle to the next push.
        server.faults(Faults::default());
        let _ = push(&server).unwrap();
        assert!(is_whole(&server, "main"));
    }
    let error = Hub::new(settings("http://127.0.0.1:1"), || false, |_| {}).push(&order(&files())).unwrap_err();
    assert!(error.to_string().contains("no answer from http://127.0.0.1:1"), "{error}");
}

#[test]
fn a_commit_whose_answer_is_lost_is_made_once() {
    let server = Server::new();
    server.faults(Faults { writes: WriteFaults { lost: 1, ..WriteFaults::default() }, ..Faults::default() });
    let pushed = push(&server).unwrap();
    assert!(pushed.commit.is_some() && is_whole(&server, "main"), "{pushed:?}");
    assert_eq!(server.summaries(REPO).unwrap(), ["the first"]);
}

#[test]
fn a_commit_of_somebody_else_is_not_overwritten() {
    let server = Server::new();
    let error = failure(&server, WriteFaults { overtaken: true, ..WriteFaults::default() });
    assert!(error.contains("has got another commit meanwhile"), "{error}");
    assert_eq!(server.summaries(REPO).unwrap(), ["of somebody else"]);
}

#[test]
fn what_no_push_can_do_is_said_before_anything_is_sent() {
    let server = Server::new();
    let xet = failure(&server, WriteFaults { xet: true, ..WriteFaults::default() });
    assert!(xet.contains("by its protocol Xet alone") && xet.contains("`hf upload` does"), "{xet}");
    let ignored = failure(&server, WriteFaults { ignore: Some("config.json"), ..WriteFaults::default() });
    assert!(ignored.contains("config.json: the .gitignore of me/mine leaves it out"), "{ignored}");
    let card = failure(&server, WriteFaults { card: Some("`license` is unknown"), ..WriteFaults::default() });
    assert!(card.contains("does not accept its head: `license` is unknown"), "{card}");
    server.faults(Faults::default());
    let _ = server.requests();
    let secret = [PushFile::of_bytes("README.md", format!("see {TOKEN}").into_bytes())];
    let error = hub(&server).push(&order(&secret)).unwrap_err().to_string();
    assert!(error.contains("README.md: has the token in it") && !error.contains(TOKEN), "{error}");
    for (change, said) in [
        (Settings { token: None, ..settings(&server.endpoint) }, "there is no token"),
        (Settings { token: Some("a b".into()), ..settings(&server.endpoint) }, "other characters of no token"),
        (Settings { unread: Some("/t is a folder".into()), ..settings(&server.endpoint) }, "/t is a folder"),
        (Settings { offline: Some("HF_HUB_OFFLINE"), ..settings(&server.endpoint) }, "HF_HUB_OFFLINE forbids"),
    ] {
        let error = Hub::new(change, || false, |_| {}).push(&order(&files())).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    assert_eq!(server.requests(), [""; 0]);
}

#[test]
fn names_are_checked_as_the_hub_does() {
    for name in ["me/mine", "Qwen/Qwen2.5-0.5B", "a_b/c.d"] {
        check_names(name, "main").unwrap();
    }
    for name in
        ["mine", "me/", "/mine", "a/b/c", "me/m ine", "me/mine.git", "me/a--b", "me/-a", "me/a-", "hf://me/mine"]
    {
        assert!(matches!(check_names(name, "main"), Err(PushError::Name { .. })), "{name}");
    }
    assert!(check_names(&format!("me/{}", "x".repeat(94)), "main").is_err());
    for branch in ["v1", "exp/2", "a.b_c-d"] {
        check_names("me/mine", branch).unwrap();
    }
    for branch in ["", "a b", "-x", "a//b", "/a", "a/", "a..b", ".a", "a.lock", &"ab".repeat(20)] {
        assert!(matches!(check_names("me/mine", branch), Err(PushError::Revision { .. })), "{branch}");
    }
}

#[test]
fn a_push_ends_when_the_user_has_had_enough() {
    let server = Server::new();
    server.faults(Faults { writes: WriteFaults { silent: Some(100), ..WriteFaults::default() }, ..Faults::default() });
    let hub = Hub::new(settings(&server.endpoint), || true, |_| {});
    let error = hub.push(&order(&files())).unwrap_err().to_string();
    assert!(error.contains("the push was interrupted; nothing of it is visible"), "{error}");
    assert!(nothing_is_visible(&server));
}

#[test]
fn an_answer_that_moves_a_repository_is_followed_with_the_content() {
    let (server, other) = (Server::new(), Server::new());
    // The same Hub by another path; a foreign one would get no token.
    server.faults(Faults { redirect: Some("{path}?there".into()), ..Faults::default() });
    let _ = push(&server).unwrap();
    assert!(is_whole(&server, "main"));
    server.faults(Faults { redirect: Some(format!("{}{{path}}", other.endpoint)), ..Faults::default() });
    assert!(push(&server).is_err());
    assert!(other.tokens().iter().all(Option::is_none));
    // Who does not answer is named, and not who leads there.
    server.faults(Faults { redirect: Some("http://127.0.0.1:1{path}".into()), ..Faults::default() });
    let error = push(&server).unwrap_err().to_string();
    assert!(error.contains("no answer from http://127.0.0.1:1/") && !error.contains(&server.endpoint), "{error}");
}
