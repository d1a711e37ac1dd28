//! The C header and the Rust crate are one interface: the same levels, the same acts, in C and in C++.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::process::Command;

use crate::common::{CORE, compile, ground, succeed};
use quell_lane::{LaneError, Level, PRIORITY_MAX, Priorities};

/// Says what it finds, a line each.
const PROGRAM: &str = r#"
#include "quell_lane.h"
static void show(const char *when)
{
	struct sched_param param;
	struct quell_lane_cores cores;
	int policy = sched_getscheduler(0), n, count = 0;
	sched_getparam(0, &param);
	quell_lane_get_cores(&cores);
	for (n = 0; n < QUELL_LANE_CORES_MAX; n++)
		count += quell_lane_has_core(&cores, n);
	printf("%s %d %d %d\n", when, policy, param.sched_priority, count);
}
int main(int argc, char **argv)
{
	static const int wrong[QUELL_LANE_LEVELS] = {4, 3, 2, 1};
	struct quell_lane lane;
	struct quell_lane_thread own, gone;
	char why[512];
	uint64_t spurious = 0;
	int level;
	(void)argc;
	memset(&gone, 0, sizeof(gone));
	if (quell_lane_open(&lane, atoi(argv[1]), NULL) < 0) {
		printf("%s\n", lane.why);
		return 0;
	}
	printf("top %d\n", QUELL_LANE_PRIORITY_MAX);
	show("before");
	for (level = 0; level < QUELL_LANE_LEVELS; level++) {
		if (quell_lane_enter(&lane, &own, (enum quell_lane_level)level) < 0)
			return 1;
		show("level");
		if (quell_lane_leave(&lane, &own) < 0)
			return 1;
		show("after");
	}
	if (quell_lane_leave(&lane, &own) == 0 || errno != ESRCH)
		return 1;
	if (quell_lane_enter(&lane, &own, QUELL_LANE_PARKED) < 0)
		return 1;
	/* A turn that ended, and one that is over before the worker is raised, and after. */
	if (quell_lane_disarm(&lane) || quell_lane_arm(&lane, 1000) < 0 || !quell_lane_disarm(&lane))
		return 1;
	if (quell_lane_arm(&lane, 1000000) < 0 || quell_lane_wait(&lane, &spurious) != 1)
		return 1;
	if (quell_lane_preempt(&lane, &own, 1000) != 0 || quell_lane_wait(&lane, &spurious) != 1)
		return 1;
	if (quell_lane_run(&lane, &own, 1000) < 0 || quell_lane_wait(&lane, NULL) != 1)
		return 1;
	show("raised");
	if (quell_lane_preempt(&lane, &own, 1000) != 1)
		return 1;
	show("parked");
	if (quell_lane_switch_to(&lane, &gone, &own) < 0)
		return 1;
	show("raised");
	if (quell_lane_switch_to(&lane, &own, &gone) == 0 || errno != ESRCH)
		return 1;
	if (quell_lane_stop(&lane) < 0 || quell_lane_wait(&lane, NULL) != 0 || quell_lane_wait(&lane, NULL) != 0)
		return 1;
	if (quell_lane_leave(&lane, &own) < 0)
		return 1;
	show("after");
	quell_lane_explain(&lane, ESRCH, why, sizeof(why));
	printf("%s\n", why);
	quell_lane_close(&lane);
	if (quell_lane_open(&lane, atoi(argv[1]), wrong) == 0)
		return 1;
	printf("%s\n", lane.why);
	return 0;
}
"#;

fn agrees(compiler: &str, standard: &str) {
    let Some(_lock) = ground() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("program.c");
    fs::write(&source, PROGRAM).unwrap();
    let program = compile(dir.path(), compiler, standard, &source);
    let run = |command: &mut Command| String::from_utf8(succeed(command).stdout).unwrap();

    let said = run(Command::new(&program).arg(CORE.to_string()));
    let mut lines = said.lines();
    let mut next = || lines.next().unwrap_or_default().to_owned();
    assert_eq!(next(), format!("top {PRIORITY_MAX}"));
    let before = next().split_once(' ').unwrap().1.to_owned();
    for level in Level::ALL {
        assert_eq!(next(), format!("level 1073741825 {} 1", Priorities::default().of(level)));
        assert_eq!(next(), format!("after {before}"));
    }
    let on = |level| format!("1073741825 {} 1", Priorities::default().of(level));
    assert_eq!(next(), format!("raised {}", on(Level::Running)));
    assert_eq!(next(), format!("parked {}", on(Level::Parked)));
    assert_eq!(next(), format!("raised {}", on(Level::Running)));
    assert_eq!(next(), format!("after {before}"));
    assert_eq!(next(), LaneError::Gone.to_string());
    assert_eq!(next(), LaneError::Priorities.to_string());

    // Refusals have the same words.
    assert_eq!(run(Command::new(&program).arg("4095")).trim(), LaneError::NoCore(4095).to_string());
    let nobody = ["--rtprio=0", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    use std::os::unix::fs::PermissionsExt;
    for path in [dir.path(), &program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let said = run(Command::new("prlimit").args(nobody).arg(&program).arg(CORE.to_string()));
    assert_eq!(said.trim(), LaneError::NoRight { priority: 7, limit: 0 }.to_string());
}

#[test]
fn c_and_rust_agree() {
    agrees("cc", "c11");
}

#[test]
fn so_do_cpp_and_rust() {
    agrees("c++", "c++11");
    agrees("c++", "c++17");
}
