//! For tests: recorded traffic, servers that play it, and servers of packages.

use std::{
    env, fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net,
};

/// The lines of a recording.
pub fn recording(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(harness::golden_dir().join("wire").join(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A text that is JSON.
pub fn json(text: &Value) -> Value {
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

/// A request over HTTP.
#[derive(Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// The next request of a connection; none where the client has closed it.
pub async fn asked(stream: &mut BufReader<net::TcpStream>) -> io::Result<Option<Asked>> {
    let mut first = String::new();
    if stream.read_line(&mut first).await? == 0 {
        return Ok(None);
    }
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_owned()));
    }
    let mut asked = Asked { method, path, headers, body: String::new() };
    let length: usize = asked.header("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    asked.body = String::from_utf8(body).unwrap();
    Ok(Some(asked))
}

/// An answer over HTTP: its status, headers and body.
pub type Answered = (u64, Vec<(String, String)>, String);

/// Serves HTTP on a free port, and returns its address.
pub async fn http(served: impl Fn(&Asked) -> Answered + Send + Sync + 'static) -> SocketAddr {
    let listener = net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, served) = (listener.local_addr().unwrap(), Arc::new(served));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let served = Arc::clone(&served);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Ok(Some(asked)) = asked(&mut stream).await {
                    let (status, headers, body) = served(&asked);
                    answer(&mut stream, (status, &headers, &body)).await.unwrap();
                }
            });
        }
    });
    address
}

/// Answers a request.
pub async fn answer(
    stream: &mut BufReader<net::TcpStream>,
    (status, headers, body): (u64, &[(String, String)], &str),
) -> io::Result<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!("HTTP/1.1 {status} OK\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await
}

/// A process that ends with the test.
pub struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Python that can import a module.
pub fn python(variable: &str, module: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = Command::new(&named);
    import.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success()).then_some(named)
}

/// Starts a server on a free port, and waits until it listens there.
pub fn server(python: &Path, program: &str) -> (Running, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(python);
    command.args(["-c", program, &port.to_string()]).stdout(Stdio::null());
    let mut server = Running(command.spawn().unwrap());
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.0.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(20));
    }
    (server, port)
}
