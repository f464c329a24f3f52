//! The stream of a session over HTTP on which a server asks what belongs to no request of the client. Without it, a
//! tool that asks there waits for an answer which never comes.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    client::Era,
    http::{Messages, Way, has_events},
};

/// How long a server may take to open the stream before calls go on without it.
const OPENING: Duration = Duration::from_secs(2);

/// How long after its end the stream is opened again: the pause after a stream of use, which doubles with each attempt
/// that was of none, and the longest pause.
const AGAIN: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// Answers what the server of a session asks on the stream. Dropping it closes the stream.
#[derive(Debug)]
pub struct Listener(JoinHandle<()>);

impl Listener {
    /// Opens the stream, and waits until the server has said whether it has one: a call after that may ask there.
    pub async fn open(way: Way, era: Era) -> Self {
        let (opening, opened) = oneshot::channel();
        let listener = Self(tokio::spawn(listen(way, era, opening)));
        // The other end is dropped, which ends the wait too.
        let _ = timeout(OPENING, opened).await;
        listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens the stream again and again, unless the server has none. Drops `opening` once the first attempt has ended.
async fn listen(way: Way, era: Era, opening: oneshot::Sender<()>) {
    let (mut opening, mut pause) = (Some(opening), None);
    loop {
        let answer = way.listen(&era).send().await;
        drop(opening.take());
        let is_of_use = match answer {
            Ok(response) if response.status().is_success() && has_events(&response) => hear(&way, &era, response).await,
            Ok(response) if is_final(response.status()) => return,
            _ => false,
        };
        let next = pause_after(pause, is_of_use);
        sleep(next).await;
        pause = Some(next);
    }
}

/// The pause after an attempt, by the pause before it.
fn pause_after(before: Option<Duration>, is_of_use: bool) -> Duration {
    match before {
        Some(before) if !is_of_use => (2 * before).min(LONGEST),
        _ => AGAIN,
    }
}

/// Whether a server that answers with this status, and without a stream, has none. A server may have one for each
/// session, and not know yet that the last one is closed.
fn is_final(status: StatusCode) -> bool {
    let is_busy = [StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    status == StatusCode::NOT_IMPLEMENTED || !(status.is_server_error() || is_busy)
}

/// Answers what is asked until the stream ends. Returns whether the stream was of use: a message came, or it was open
/// for so long that opening it again at once is no burden.
async fn hear(way: &Way, era: &Era, response: Response) -> bool {
    let (mut messages, begun, mut has_heard) = (Messages::of(response), Instant::now(), false);
    while let Ok(Some(message)) = messages.take().await {
        has_heard = true;
        way.answer(era, &message).await;
    }
    has_heard || begun.elapsed() >= LONGEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_has_no_stream_is_asked_once_and_others_more_and_more_seldom() {
        for status in [400, 404, 405, 501, 200, 204] {
            assert!(is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [409, 429, 500, 502, 503, 504] {
            assert!(!is_final(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        let mut pause = None;
        let seconds = [false, false, false, false, false, false, false, true, false].map(|is_of_use| {
            let next = pause_after(pause, is_of_use);
            pause = Some(next);
            next.as_secs()
        });
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 1, 2]);
    }
}
