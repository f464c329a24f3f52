//! The socket of an episode.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::{net::TcpStream, sync::mpsc, time::timeout};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{Error, Message, protocol::WebSocketConfig},
};

use super::places::Place;
use crate::MAX_MESSAGE;

/// How long a server may take to close a socket.
const CLOSING: Duration = Duration::from_secs(1);

/// A socket, with its place on the server. A task of its own answers the server's pings, also while nobody asks for
/// anything: a server takes a client that does not answer for gone. Dropping it closes it.
#[derive(Debug)]
pub struct Socket {
    out: mpsc::UnboundedSender<Value>,
    taken: mpsc::UnboundedReceiver<Result<Value, String>>,
}

impl Socket {
    /// Connects to an address, `ws://…`. The place is given back once the socket is closed.
    ///
    /// # Errors
    /// Why there is no connection.
    pub async fn connect(address: &str, place: Place) -> Result<Self, String> {
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        let connected = connect_async_with_config(address, Some(config), true).await;
        let (stream, _) = connected.map_err(|error| format!("no connection to {address}: {error}"))?;
        let (out, said) = mpsc::unbounded_channel();
        let (heard, taken) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            run(stream, said, heard).await;
            drop(place);
        });
        Ok(Self { out, taken })
    }

    /// Sends a message, and waits for the next one.
    ///
    /// # Errors
    /// Why none comes.
    pub async fn ask(&mut self, message: Value) -> Result<Value, String> {
        // What the server said before it closed the socket can still be read.
        let _ = self.out.send(message);
        self.taken.recv().await.unwrap_or_else(|| Err("the server has closed the socket".to_owned()))
    }
}

async fn run(
    mut stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    mut said: mpsc::UnboundedReceiver<Value>,
    heard: mpsc::UnboundedSender<Result<Value, String>>,
) {
    loop {
        tokio::select! {
            message = said.recv() => match message {
                Some(message) => {
                    if stream.send(Message::text(message.to_string())).await.is_err() {
                        // The reason comes with the next message.
                        continue;
                    }
                }
                None => {
                    let _ = stream.send(Message::text(r#"{"type":"close"}"#)).await;
                    let _ = stream.close(None).await;
                    // Until the server has closed it too, the place is not free there.
                    let _ = timeout(CLOSING, async { while let Some(Ok(_)) = stream.next().await {} }).await;
                    return;
                }
            },
            frame = stream.next() => match frame {
                Some(Ok(Message::Text(text))) => {
                    let read = serde_json::from_str(&text).map_err(|_| "the server sent what is no JSON".to_owned());
                    let _ = heard.send(read);
                }
                Some(Ok(_)) => {}
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) | None => return,
                Some(Err(error)) => {
                    let _ = heard.send(Err(format!("the socket broke: {error}")));
                    return;
                }
            },
        }
    }
}
