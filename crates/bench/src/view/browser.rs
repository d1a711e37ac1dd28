//! A headless Chromium, driven over its DevTools protocol (chromedevtools.github.io/devtools-protocol) through a pair
//! of pipes: no port, no web socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long one answer may take; pages of a hundred megabytes are opened.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page. Ended on drop, with all that it started.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Value,
    asked: u64,
    /// What the page complained of: exceptions, and errors on its console.
    complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts Chromium with an empty page of this size.
    ///
    /// # Errors
    /// When Chromium is not installed or does not answer.
    pub fn start(width: u32, height: u32) -> Result<Browser> {
        let profile = tempfile::tempdir()?;
        let directory = format!("--user-data-dir={}", profile.path().display());
        // Chromium wants its pipes as descriptors 3 and 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "chromium"]);
        shell.args(["--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]);
        shell.args(["--hide-scrollbars", "--disable-background-networking", "--disable-sync"]);
        shell.args(["--disable-component-update", "--disable-extensions", &directory]);
        if rustix::process::geteuid().is_root() {
            // Its sandbox refuses to run as root.
            shell.arg("--no-sandbox");
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = shell.spawn().context("start chromium")?;
        let to = child.stdin.take().context("no pipe to chromium")?;
        let out = child.stdout.take().context("no pipe from chromium")?;
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(out).split(0).map_while(Result::ok);
            for message in messages.filter_map(|bytes| serde_json::from_slice(&bytes).ok()) {
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Browser {
            child,
            to,
            from,
            session: Value::Null,
            asked: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.open_page(width, height).context(
            "chromium does not answer; is it installed (`make setup`, or the package `chromium`)?",
        )?;
        Ok(browser)
    }

    fn open_page(&mut self, width: u32, height: u32) -> Result<()> {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        self.session = self.call("Target.attachToTarget", attach)?["sessionId"].take();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, json!({}))?;
        }
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        Ok(())
    }

    /// Opens an address.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(&mut self, address: &str) -> Result<()> {
        let answer = self.call("Page.navigate", json!({ "url": address }))?;
        match answer["errorText"].as_str() {
            Some(error) => bail!("{address}: {error}"),
            None => Ok(()),
        }
    }

    /// The value of an expression; of a promise, what it resolves to.
    ///
    /// # Errors
    /// When it throws.
    pub fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let asked =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked)?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{expression}: {}", thrown["exception"]["description"]);
        }
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// When it never is.
    pub fn wait_for(&mut self, expression: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.evaluate(expression)? == Value::Bool(true) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("`{expression}` never came true; the page said {:?}", self.complaints)
    }

    /// Presses a key, with the text that it types.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let text = if key.chars().count() == 1 { key } else { "" };
        let down = json!({ "type": "keyDown", "key": key, "text": text });
        self.call("Input.dispatchKeyEvent", down)?;
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }))?;
        Ok(())
    }

    /// A mouse event: `mouseMoved`, `mousePressed`, `mouseReleased`, or `mouseWheel` by `wheel` pixels.
    ///
    /// # Errors
    /// When the browser is gone.
    pub fn mouse(&mut self, kind: &str, (x, y): (f64, f64), wheel: f64) -> Result<()> {
        let pressed = matches!(kind, "mousePressed" | "mouseReleased");
        let button = if pressed { "left" } else { "none" };
        let event = json!({
            "type": kind, "x": x, "y": y, "button": button, "clickCount": i32::from(pressed),
            "deltaX": 0, "deltaY": wheel,
        });
        self.call("Input.dispatchMouseEvent", event)?;
        Ok(())
    }

    /// What the page complained of so far.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).context("chromium is gone")?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut answer = match self.from.recv_timeout(left) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => bail!("{method}: no answer"),
                Err(RecvTimeoutError::Disconnected) => bail!("{method}: chromium ended"),
            };
            if answer["id"] == id {
                match answer.get("error") {
                    Some(error) => bail!("{method}: {error}"),
                    None => return Ok(answer["result"].take()),
                }
            }
            self.listen(&answer);
        }
    }

    fn listen(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &params["exceptionDetails"],
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => &params["args"],
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => &params["entry"],
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The group is the browser with its helpers; a browser that ended already is as well.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
