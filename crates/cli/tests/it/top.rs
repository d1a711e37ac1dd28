//! `quell top` in a real terminal (tmux), against a real daemon with real programs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::process::{Command, Output};

use crate::common::{Daemon, Ground, Program, QUELL, eventually};

/// A terminal with a shell in it, ended with the test.
struct Terminal {
    server: String,
}

impl Terminal {
    fn new(ground: &Ground, columns: u16, rows: u16) -> Terminal {
        // A server of its own: no one else's session is touched.
        let name = ground.path().file_name().unwrap().to_str().unwrap();
        let terminal = Terminal { server: format!("quell-{name}") };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let run_dir = format!("QUELL_RUN_DIR={}", ground.path().display());
        let shell = "PS1='ready> ' exec bash --norc --noprofile";
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, "-e", &run_dir, shell]);
        terminal.waits_for("ready>");
        terminal
    }

    fn tmux(&self, args: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.server, "-f", "/dev/null"]).args(args);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a line and Enter.
    fn line(&self, text: &str) {
        self.keys(&["-l", text]);
        self.keys(&["Enter"]);
    }

    fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// The screen with its escapes: colours are seen in it.
    fn escapes(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p", "-e"]).stdout).unwrap()
    }

    fn waits_for(&self, text: &str) -> String {
        self.waits_until(text, |screen| screen.contains(text))
    }

    fn waits_until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) -> String {
        let mut screen = String::new();
        eventually(&format!("the screen shows {what}"), || {
            screen = self.screen();
            is_so(&screen)
        });
        screen
    }

    fn format(&self, format: &str) -> String {
        let out = self.tmux(&["display-message", "-p", format]).stdout;
        String::from_utf8(out).unwrap().trim().to_owned()
    }

    /// How the shell has the terminal: to be the same before and after.
    fn settings(&self, ground: &Ground) -> String {
        let path = ground.path().join("stty");
        let _ = std::fs::remove_file(&path);
        self.line(&format!("stty -g > {}.new && mv {0}.new {0}", path.display()));
        eventually("the settings are written", || path.exists());
        std::fs::read_to_string(path).unwrap()
    }

    /// `top` has ended and left nothing behind.
    fn assert_given_back(&self, ground: &Ground, settings: &str) {
        eventually("the shell has the terminal", || {
            self.format("#{pane_current_command}") == "bash"
        });
        assert_eq!(self.format("#{alternate_on}"), "0", "the shell's screen is back");
        assert_eq!(self.format("#{cursor_flag}"), "1", "the cursor is shown");
        assert_eq!(self.settings(ground), settings);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let kill = ["-L", &self.server, "kill-server"];
        let _ = Command::new("tmux").args(kill).output();
    }
}

/// A service that works a third of the time, and batch work for every core.
struct Host {
    _programs: [Program; 2],
    config: String,
}

impl Host {
    fn new() -> Host {
        let lc = Program::start("stress-ng", &["--cpu", "1", "--cpu-load", "30", "--quiet"]);
        let be = Program::start("stress-ng", &["--cpu", "2", "--quiet"]);
        let config = format!(
            "[[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\nguaranteed = 1\n\
             [[task]]\nname = \"batch\"\nclass = \"be\"\npid = {}\n",
            lc.pid(),
            be.pid()
        );
        Host { _programs: [lc, be], config }
    }

    fn run<'a>(&self, ground: &'a Ground) -> Daemon<'a> {
        ground.run(&self.config)
    }
}

/// The names in the first column of the task table, in their order.
fn tasks(screen: &str) -> Vec<&str> {
    let of = |line: &str| {
        ["web", "batch"]
            .into_iter()
            .find(|name| line.get(2..).is_some_and(|rest| rest.starts_with(name)))
    };
    screen.lines().filter_map(of).collect()
}

#[test]
fn keys_sort_filter_freeze_explain_and_quit_on_a_small_terminal() {
    let (ground, host) = (Ground::new(), Host::new());
    let daemon = host.run(&ground);
    let terminal = Terminal::new(&ground, 80, 24);
    let settings = terminal.settings(&ground);
    terminal.line(&format!("{QUELL} top --interval 200"));
    let screen = terminal.waits_until("who ran where", |screen| {
        screen.contains("batch") && screen.contains("WHO RAN HERE") && screen.contains('%')
    });
    assert_eq!(tasks(&screen), ["batch", "web"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    // Sorting: the other way round.
    terminal.keys(&["r"]);
    terminal.waits_until("the order turned", |screen| tasks(screen) == ["web", "batch"]);
    terminal.keys(&["Right"]);
    terminal.waits_for("by CLASS descending");
    // Filter.
    terminal.keys(&["/"]);
    terminal.keys(&["-l", "batch"]);
    terminal.keys(&["Enter"]);
    terminal.waits_for("1 Tasks (1 of 2)");
    terminal.keys(&["Escape"]);
    terminal.waits_for("1 Tasks (2)");
    // Why, in the daemon's words.
    terminal.keys(&["Enter"]);
    terminal.waits_for("is treated as");
    // Help.
    terminal.keys(&["?"]);
    terminal.waits_for("freeze the display");
    terminal.keys(&["?"]);
    // Frozen: nothing moves until it steps.
    terminal.keys(&["Space"]);
    let frozen = terminal.waits_for("FROZEN");
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(terminal.screen(), frozen);
    terminal.keys(&["s"]);
    terminal.waits_until("another sample", |screen| screen.contains("FROZEN") && screen != frozen);
    terminal.keys(&["Space"]);
    terminal.waits_for("connected");
    // Panes.
    for (key, title) in [("3", "[3 Decisions"), ("4", "[4 Advice"), ("5", "[5 Events")] {
        terminal.keys(&[key]);
        terminal.waits_for(title);
    }
    terminal.keys(&["q"]);
    terminal.assert_given_back(&ground, &settings);
    daemon.stop();
}

#[test]
fn a_resized_terminal_shows_all_panes_and_a_signal_gives_it_back() {
    let (ground, host) = (Ground::new(), Host::new());
    let daemon = host.run(&ground);
    let terminal = Terminal::new(&ground, 80, 24);
    let settings = terminal.settings(&ground);
    terminal
        .line(&format!("NO_COLOR=1 {QUELL} top & echo $! > {}/pid; fg", ground.path().display()));
    terminal.waits_for("[1 Tasks (2)");
    terminal.tmux(&["resize-window", "-x", "200", "-y", "60"]);
    let screen = terminal.waits_until("all panes", |screen| {
        ["1 Tasks", "2 Cores", "3 Decisions", "4 Advice", "5 Events", "Why: task batch"]
            .iter()
            .all(|title| screen.contains(title))
    });
    assert!(screen.contains("P99.9") && screen.contains("PROBLEMS"), "{screen}");
    let escapes = terminal.escapes();
    // 39 and 49 are the terminal's own colours.
    let plain = escapes.replace("\x1b[39m", "").replace("\x1b[49m", "");
    assert!(!plain.contains("\x1b[3") && !plain.contains("\x1b[9"), "{escapes}");
    terminal.tmux(&["resize-window", "-x", "40", "-y", "8"]);
    terminal.waits_until("something small", |screen| !screen.contains("Decisions"));
    let pid = std::fs::read_to_string(ground.path().join("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    terminal.assert_given_back(&ground, &settings);
    daemon.stop();
}

#[test]
fn a_daemon_that_goes_is_waited_for_and_found_again() {
    let (ground, host) = (Ground::new(), Host::new());
    let daemon = host.run(&ground);
    let terminal = Terminal::new(&ground, 80, 24);
    let settings = terminal.settings(&ground);
    terminal.line(&format!("{QUELL} top --interval 200"));
    terminal.waits_for("| connected");
    daemon.stop();
    let screen = terminal.waits_for("NO DAEMON");
    assert!(screen.contains("not connected") && tasks(&screen) == ["batch", "web"], "{screen}");
    let daemon = host.run(&ground);
    terminal.waits_until("the new daemon", |screen| {
        screen.contains("| connected") && !screen.contains("NO DAEMON")
    });
    terminal.keys(&["C-c"]);
    terminal.assert_given_back(&ground, &settings);
    daemon.stop();
}

#[test]
fn one_frame_is_plain_text_and_errors_are_one_line() {
    let (ground, host) = (Ground::new(), Host::new());
    let nobody = ground.quell(&["top", "--once"]);
    let said = String::from_utf8(nobody.stderr).unwrap();
    assert!(said.contains("no Quell daemon listens") && said.lines().count() == 1, "{said}");
    let daemon = host.run(&ground);
    let piped = ground.quell(&["top"]);
    let said = String::from_utf8(piped.stderr).unwrap();
    assert!(said.contains("`--once`") && said.lines().count() == 1, "{said}");
    let out = ground.quell(&["top", "--once", "--width", "200", "--height", "60"]);
    let frame = String::from_utf8(out.stdout).unwrap();
    assert_eq!((out.status.success(), frame.lines().count()), (true, 60), "{frame}");
    assert!(frame.lines().all(|line| line.chars().count() <= 200) && !frame.contains('\x1b'));
    for wanted in
        ["web", "batch", "guaranteed to its owner", "Why: task batch", "batch joins as BE"]
    {
        assert!(frame.contains(wanted), "{wanted} in {frame}");
    }
    // Rates need two samples.
    assert!(!frame.contains("- ticks/s") && !frame.contains("daemon - %"), "{frame}");
    assert_eq!(daemon.status()["decisions"][0]["to"], "web");
    if daemon.status()["observer"] == "bpf" {
        eventually("both tasks have run on a managed core", || {
            let status = daemon.status();
            let ran = |task: &str| {
                let cores = status["cores"].as_array().unwrap().iter();
                let rows = cores.flat_map(|core| core["task_cpu"].as_array().unwrap());
                let ran = rows.filter(|ran| ran["task"] == task).map(|ran| &ran["cpu_ms"]);
                ran.map(|ms| ms.as_f64().unwrap()).sum::<f64>()
            };
            ran("web") > 0.0 && ran("batch") > 0.0
        });
    }
    daemon.stop();
}
