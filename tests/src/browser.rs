//! Chromium, driven through its DevTools protocol: tests see what a page shows, and how it reacts to clicks, touches
//! and keys.

use std::{
    env, fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tungstenite::{Message, WebSocket, client};

/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    sent: u64,
    /// Exceptions, errors on the console, and violations of the page's own policy.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

/// `TANDEM_CHROMIUM`, or a browser on the search path.
fn program() -> Option<PathBuf> {
    let known = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let paths = env::var_os("PATH").unwrap_or_default();
    let found =
        env::split_paths(&paths).flat_map(|folder| known.map(|name| folder.join(name))).find(|path| path.is_file());
    env::var_os("TANDEM_CHROMIUM").map(PathBuf::from).or(found)
}

impl Browser {
    /// Starts a browser; none if there is none.
    ///
    /// # Panics
    /// When there is one that does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let program = program()?;
        let profile = tempfile::tempdir().expect("there is room for a folder");
        let mut command = Command::new(program);
        // Its own sandbox needs rights that containers do not give; the pages are ours.
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            "--no-first-run",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a browser starts");
        let (port, path) = address(&profile.path().join("DevToolsActivePort"));
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the browser listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        let (socket, _) = client(format!("ws://127.0.0.1:{port}{path}"), stream).expect("the browser answers");
        let mut browser =
            Self { child, socket, session: String::new(), sent: 0, complaints: Vec::new(), _profile: profile };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().expect("a session has a name").to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            let _ = browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket.send(Message::text(message.to_string())).expect("the browser listens");
        loop {
            let Message::Text(text) = self.socket.read().unwrap_or_else(|e| panic!("{method}: {e}")) else { continue };
            let answer: Value = serde_json::from_str(&text).expect("DevTools speaks JSON");
            if answer["id"] == self.sent {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            let is_bad = match answer["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => answer["params"]["type"] == "error",
                Some("Log.entryAdded") => answer["params"]["entry"]["level"] == "error",
                _ => false,
            };
            if is_bad {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }

    /// Opens an address and waits until the page says that it is ready.
    pub fn open(&mut self, address: &str) {
        let _ = self.call("Page.navigate", json!({ "url": address }));
        self.wait_for("document.documentElement?.dataset.ready === 'yes'");
    }

    /// Sets the size of the window, and whether it is used by finger or mouse.
    pub fn window(&mut self, width: u32, height: u32, touch: bool) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch });
        let _ = self.call("Emulation.setDeviceMetricsOverride", size);
        let _ = self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": touch }));
    }

    /// Sets the dark or the light theme.
    pub fn dark(&mut self, dark: bool) {
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        let _ = self.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }));
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// When it throws.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// When it does not become true.
    pub fn wait_for(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            assert!(begin.elapsed() < PATIENCE, "never: {expression}\n{:?}", self.complaints);
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Gives the first element that a selector finds the focus, as soon as it can take it: hidden elements cannot, and
    /// charts are hidden until they are drawn.
    pub fn focus(&mut self, selector: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        self.wait_for(&format!("({element}?.focus(), {element} && document.activeElement === {element})"));
    }

    /// Scrolls the first element that a selector finds into view, and returns where its middle is.
    fn middle(&mut self, selector: &str) -> (f64, f64) {
        self.wait_for(&format!("document.querySelector({})", json!(selector)));
        let at = self.eval(&format!(
            "(() => {{ const element = document.querySelector({}); element.scrollIntoView({{ block: 'center' }}); \
             const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; \
             }})()",
            json!(selector)
        ));
        (at[0].as_f64().expect("a place"), at[1].as_f64().expect("a place"))
    }

    fn mouse(&mut self, kind: &str, (x, y): (f64, f64), button: &str) {
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1,
            "buttons": u8::from(button == "left") });
        let _ = self.call("Input.dispatchMouseEvent", event);
    }

    /// Clicks with the mouse.
    pub fn click(&mut self, selector: &str) {
        let at = self.middle(selector);
        self.mouse("mouseMoved", at, "none");
        self.mouse("mousePressed", at, "left");
        self.mouse("mouseReleased", at, "left");
    }

    /// Moves the mouse over an element, `right` pixels to the right of its middle.
    pub fn hover(&mut self, selector: &str, right: f64) {
        let (x, y) = self.middle(selector);
        self.mouse("mouseMoved", (x + right - 1.0, y), "none");
        self.mouse("mouseMoved", (x + right, y), "none");
    }

    /// Drags from the middle of an element to the right.
    pub fn drag(&mut self, selector: &str, right: f64) {
        let (x, y) = self.middle(selector);
        self.mouse("mouseMoved", (x, y), "none");
        self.mouse("mousePressed", (x, y), "left");
        self.mouse("mouseMoved", (x + right / 2.0, y), "left");
        self.mouse("mouseMoved", (x + right, y), "left");
        self.mouse("mouseReleased", (x + right, y), "left");
    }

    /// Taps with a finger.
    pub fn tap(&mut self, selector: &str) {
        let (x, y) = self.middle(selector);
        let _ =
            self.call("Input.dispatchTouchEvent", json!({ "type": "touchStart", "touchPoints": [{ "x": x, "y": y }] }));
        let _ = self.call("Input.dispatchTouchEvent", json!({ "type": "touchEnd", "touchPoints": [] }));
    }

    /// Presses a key by its name, as `Tab` or `ArrowLeft`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, None),
            "Enter" => (13, Some("\r")),
            "Escape" => (27, None),
            " " => (32, Some(" ")),
            "End" => (35, None),
            "Home" => (36, None),
            "ArrowLeft" => (37, None),
            "ArrowRight" => (39, None),
            other => panic!("{other} has no code here"),
        };
        let name = if key == " " { "Space" } else { key };
        let mut event = json!({ "type": "keyDown", "key": key, "code": name, "windowsVirtualKeyCode": code });
        if let Some(text) = text {
            event["text"] = text.into();
        }
        let _ = self.call("Input.dispatchKeyEvent", event);
        let _ = self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key, "code": name, "windowsVirtualKeyCode": code }),
        );
    }

    /// Types into the element that has the focus.
    pub fn type_text(&mut self, text: &str) {
        let _ = self.call("Input.insertText", json!({ "text": text }));
    }

    /// Complaints of the page since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The browser's address: a port, and the path of its socket.
fn address(file: &Path) -> (u16, String) {
    let begin = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some((port, path)) = text.split_once('\n')
            && let Ok(port) = port.parse()
        {
            return (port, path.trim().to_owned());
        }
        assert!(begin.elapsed() < PATIENCE, "the browser does not say where it listens");
        thread::sleep(Duration::from_millis(30));
    }
}
